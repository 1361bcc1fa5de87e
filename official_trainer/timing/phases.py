"""What a run is doing at any moment, told to whoever counts the time, watches for a hang, or shows it."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager


class Phase(enum.Enum):
  """What wall time is spent on. One thing at a time: while a phase runs inside another, the outer one stands still."""

  TRAIN = "train"
  DATA_WAIT = "data_wait"
  COMPILE = "compile"
  EVAL = "eval"
  SAVE = "save"
  RESTORE = "restore"
  OTHER = "other"


Enter = Callable[[Phase], AbstractContextManager[None]]

_STATUS = {
  Phase.TRAIN: "",
  Phase.COMPILE: "compiling",
  Phase.EVAL: "evaluating",
  Phase.SAVE: "saving",
  Phase.RESTORE: "restoring",
}


class Phases:
  """Joins those who want to know."""

  def __init__(self, *listeners: Enter, status: Callable[[str], None] = lambda text: None):
    """Stores them.

    Args:
      listeners: each enters a context for the length of a phase.
      status: told what goes on besides training; an empty text is for training itself.
    """
    self._listeners = listeners
    self._status = status

  @contextlib.contextmanager
  def __call__(self, phase: Phase) -> Iterator[None]:
    """Says that the body is this phase."""
    with contextlib.ExitStack() as stack:
      for listener in self._listeners:
        stack.enter_context(listener(phase))
      if phase in _STATUS:
        self._status(_STATUS[phase])
      yield
