"""Ends a run whose wall-clock budget is spent."""

from __future__ import annotations

from collections.abc import Callable

from official_trainer.actions.event import Event
from official_trainer.state import TrainState


class TimeLimit:
  """After an inner loop, before a checkpoint is saved: ends the run once all its starts have taken so long."""

  def __init__(
    self,
    state: TrainState,
    max_wall_secs: float | None,
    elapsed_secs: Callable[[], float],
    *,
    train_steps: int,
    from_chief: Callable[[int], int] = int,
  ):
    """Stores its arguments.

    Args:
      state: whose `host.spent_secs` and `host.finished` are set.
      max_wall_secs: `trainer.max_wall_secs`.
      elapsed_secs: returns the wall time of all starts of the run so far.
      train_steps: where the run ends in any case.
      from_chief: returns the chief's number, whoever calls it: the clock of the chief counts.
    """
    self._state = state
    self._max_wall_secs = max_wall_secs
    self._elapsed_secs = elapsed_secs
    self._train_steps = train_steps
    self._from_chief = from_chief

  def __call__(self, event: Event) -> None:
    del event
    self.decide()

  def decide(self) -> None:
    """Decides now. All processes call it, at the same place of the run."""
    host, limit = self._state.host, self._max_wall_secs
    if limit is None or (host.spent_secs is not None and host.spent_secs < limit):
      host.spent_secs = None  # The limit was raised since.
    if limit is None or host.finished is not None or self._state.step >= self._train_steps:
      return
    # What was measured may be lost, with its file; that the time was up is in the state.
    if host.spent_secs is not None or self._from_chief(self._elapsed_secs() >= limit):
      host.spent_secs = limit
      host.finished = f"time is up: trainer.max_wall_secs is {limit:g}"
