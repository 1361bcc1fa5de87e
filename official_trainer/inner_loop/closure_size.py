"""How many steps one call on a worker does."""

from __future__ import annotations

import time
from collections.abc import Callable

# Long enough that making a call costs little of it, and short enough that a stop, or a lost worker, costs little.
_CALL_SECS = 0.1


class ClosureSize:
  """The number of steps of a call: as configured, as measured by an earlier start of the run, or measured now."""

  def __init__(
    self,
    configured: int | None,
    *,
    most: int,
    num_workers: int,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Stores its arguments.

    Args:
      configured: `trainer.steps_per_closure`, or None.
      most: what a measurement may come to at most; at least 1 is used.
      num_workers: how many workers there are.
      clock: returns seconds.
    """
    self._most = max(1, most)
    self._num_workers = num_workers
    self._clock = clock
    self._steps = configured
    self._is_settled = configured is not None
    self._note: Callable[[int], None] = lambda steps: None

  @property
  def is_known(self) -> bool:
    return self._is_settled

  @property
  def steps(self) -> int:
    """The number of steps; 1 until it is known."""
    return self._steps or 1

  def remember(self, steps: int | None, note: Callable[[int], None]) -> None:
    """Takes over what an earlier start of the run has measured, if it has; `note` is told what this one measures."""
    self._note = note
    if not self._is_settled and steps is not None:
      self._steps, self._is_settled = steps, True

  def measure(self, run: Callable[[int], bool]) -> None:
    """Makes calls of growing size until one is long enough, and settles the size.

    Args:
      run: makes one call of that many steps and waits for it; returns whether so many steps were left, and done.
    """
    size = 1
    while True:
      secs = []
      # The shortest counts: a worker's first call prepares the function, which may take seconds.
      for _ in range(2 * self._num_workers if size == 1 else 2):
        began = self._clock()
        if not run(size):
          return
        secs.append(self._clock() - began)
      if min(secs) >= _CALL_SECS or 2 * size > self._most:
        break
      size *= 2
    self._steps = max(1, min(self._most, round(size * _CALL_SECS / max(min(secs), 1e-6))))
    self._is_settled = True
    self._note(self._steps)
