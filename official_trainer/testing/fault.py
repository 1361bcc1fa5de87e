"""A fault that is to happen on purpose: it is counted, and missed if it did not happen."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class FaultDidNotHappen(AssertionError):
  """The body of a fault's context ended well, and the fault never came: what was tested is not what was meant."""


class SimulatedCrash(BaseException):
  """Stands for the death of the process. No `except Exception` takes it for an error that it can handle.

  Attributes:
    step: completed updates when it came.
  """

  def __init__(self, step: int):
    self.step = step
    super().__init__(step)

  def __str__(self) -> str:
    return f"a crash on purpose after step {self.step}"


def kill(_: int = 0) -> None:
  """Ends this process by SIGKILL."""
  os.kill(os.getpid(), signal.SIGKILL)


class Fault:
  """What a context of `official_trainer.testing.faults` yields.

  Attributes:
    happened: how often the fault has come.
    reached: set when it comes for the first time; for tests that wait in another thread.
  """

  def __init__(self, what: str, times: int | None):
    """Stores its arguments.

    Args:
      what: the fault with its place, for the error, e.g. "crash_at(5)".
      times: how often it may come; None for always.
    """
    if times is not None and times < 1:
      raise ValueError(f"`times` of {what} must be at least 1, or None for always; got {times}.")
    self.happened = 0
    self.reached = threading.Event()
    self._what = what
    self._times = times
    self._is_over = False

  @property
  def is_due(self) -> bool:
    """Whether it may come once more."""
    return not self._is_over and (self._times is None or self.happened < self._times)

  def note(self) -> None:
    """Counts that it came."""
    self.happened += 1
    self.reached.set()

  def end(self) -> None:
    """Keeps it from coming again: the context was left."""
    self._is_over = True

  def require_happened(self, likely: str) -> None:
    """Raises FaultDidNotHappen if it did not come.

    Args:
      likely: the likely causes, a sentence or more.
    """
    if not self.happened:
      raise FaultDidNotHappen(f"{self._what} did not happen. {likely}")


@contextlib.contextmanager
def patched(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
  """Puts `wrap(attribute)` in the place of a class's attribute while the body runs."""
  is_own = name in vars(owner)
  original = getattr(owner, name)
  setattr(owner, name, wrap(original))
  try:
    yield
  finally:
    if is_own:
      setattr(owner, name, original)
    else:
      delattr(owner, name)
