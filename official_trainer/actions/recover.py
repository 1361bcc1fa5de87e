"""Stops a run that has diverged, before anything of it is saved or reported as healthy."""

from __future__ import annotations

import math
from collections.abc import Callable

from official_trainer.actions.event import Event
from official_trainer.errors import TrainingDiverged

_LOSS = "training_loss"


def divergence(loss: float, step: int, *, upper_bound: float, begin_steps: int) -> str | None:
  """Says what is wrong with a training loss, or None.

  Args:
    loss: mean training loss since the last report.
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
  """After each inner loop: raises TrainingDiverged when the loss, or a variable about to be saved, is not finite."""

  def __init__(self, non_finite_names: Callable[[], list[str]], *, upper_bound: float, begin_steps: int):
    """Stores the checks.

    Args:
      non_finite_names: returns the names of variables that hold NaN or infinity.
      upper_bound: `trainer.loss_upper_bound`.
      begin_steps: `trainer.recovery_begin_steps`.
    """
    self._non_finite_names = non_finite_names
    self._upper_bound = upper_bound
    self._begin_steps = begin_steps

  def __call__(self, event: Event) -> None:
    loss = event.metrics.get(_LOSS)
    problem = (
      None
      if loss is None
      else divergence(loss, event.step, upper_bound=self._upper_bound, begin_steps=self._begin_steps)
    )
    if problem is None and event.saves and (names := self._non_finite_names()):
      shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
      problem = f"{len(names)} variables are not finite: {shown}"
    if problem is not None:
      raise TrainingDiverged(
        step=event.step,
        what=f"{problem}; nothing was saved at this step. Restarting continues from the last good checkpoint.",
      )
