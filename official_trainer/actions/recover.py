"""What happens to a run that has diverged: nothing of it is saved or reported, and it goes back if it may."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from official_trainer.actions.event import Event, LoopDiscarded
from official_trainer.errors import TrainingDiverged, first_of


def divergence(loss: float, step: int, *, upper_bound: float, begin_steps: int) -> str | None:
  """Says what is wrong with a training loss, or None.

  Args:
    loss: mean training loss of an inner loop.
    step: number of completed updates.
    upper_bound: `trainer.loss_upper_bound`.
    begin_steps: `trainer.recovery_begin_steps`: the bound holds from this step on; NaN and infinity are never allowed.
  """
  if not math.isfinite(loss):
    return f"the training loss is {loss}"
  if step >= begin_steps and loss > upper_bound:
    return f"the training loss {loss:g} is above trainer.loss_upper_bound ({upper_bound:g})"
  return None


class CheckDivergence:
  """Looks at an inner loop's loss, and at the variables of the state."""

  def __init__(
    self,
    non_finite_names: Callable[[], list[str]],
    *,
    upper_bound: float,
    begin_steps: int,
    every_loop: bool = False,
  ):
    """Stores the checks.

    Args:
      non_finite_names: returns the names of variables that hold NaN or infinity.
      upper_bound: `trainer.loss_upper_bound`.
      begin_steps: `trainer.recovery_begin_steps`.
      every_loop: whether variables are looked at after every loop, not only where they are about to be saved: so that
        the loop that spoilt them is known.
    """
    self._non_finite_names = non_finite_names
    self._upper_bound = upper_bound
    self._begin_steps = begin_steps
    self._every_loop = every_loop

  def __call__(self, event: Event) -> str | None:
    """Returns what has diverged, or None."""
    if event.loop_loss is not None:
      problem = divergence(event.loop_loss, event.step, upper_bound=self._upper_bound, begin_steps=self._begin_steps)
      if problem is not None:
        return problem
    if not (event.saves or self._every_loop):
      return None
    names = self._non_finite_names()
    if not names:
      return None
    return f"{len(names)} variables are not finite: {first_of(names)}"


class RollBack(Protocol):
  """Goes back to an earlier state (`rollback.RollBackToCheckpoint`)."""

  def tried(self) -> list[str]:
    """Returns what was done so far, over all starts of the run, one text for each time."""
    ...

  def window(self, start: int, end: int) -> tuple[int, int]:
    """Returns (first, end) of the batches that the updates from step `start` to step `end` used."""
    ...

  def run(self, window: tuple[int, int], what: str, step: int) -> int:
    """Goes back, leaving out the batches of `window`, and returns the step at which the run is now."""
    ...


class Recover:
  """After each inner loop: sends a run that has diverged back, or ends it."""

  def __init__(
    self,
    check: Callable[[Event], str | None],
    *,
    max_trials: int,
    roll_back: RollBack,
    report: Callable[[TrainingDiverged], None],
    warn: Callable[[str], None],
  ):
    """Stores the parts.

    Args:
      check: returns what has diverged, or None.
      max_trials: `trainer.recovery_max_trials`, over all starts of the run.
      roll_back: how to go back.
      report: told of a divergence that will be gone when the run has gone back.
      warn: shows a line.
    """
    self._check = check
    self._max_trials = max_trials
    self._roll_back = roll_back
    self._report = report
    self._warn = warn

  def __call__(self, event: Event) -> None:
    """Lets a healthy loop pass.

    Raises:
      LoopDiscarded: the state was put back; the loop must be forgotten.
      TrainingDiverged: it has diverged, and may not go back any more.
    """
    problem = self._check(event)
    if problem is None:
      return
    window = self._roll_back.window(event.start, event.step)
    tried = self._roll_back.tried()
    error = TrainingDiverged(event.step, problem, start=event.start, window=window, tried=tried)
    if len(tried) >= self._max_trials:
      raise error
    self._report(error)
    step = self._roll_back.run(window, problem, event.step)
    self._warn(
      f"diverged between steps {event.start} and {event.step}: {problem}. Going back to step {step} and leaving out"
      f" batches {window[0]} to {window[1] - 1} (attempt {len(tried) + 1} of {self._max_trials})."
    )
    raise LoopDiscarded
