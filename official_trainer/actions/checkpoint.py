"""Saves checkpoints when they are due."""

from __future__ import annotations

from collections.abc import Callable

from absl import logging

from official_trainer.actions.event import Event
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.state import TrainState
from official_trainer.timing.phases import Enter, Phase, Phases


class SaveCheckpoint:
  """After an inner loop at whose end a checkpoint is due: commits the whole state."""

  def __init__(
    self,
    state: TrainState,
    store: CheckpointStore,
    *,
    non_finite_names: Callable[[], list[str]] | None = None,
    require_equal: Callable[[int], None] = lambda step: None,
    phases: Enter | None = None,
  ):
    """Stores the state and where it goes.

    Args:
      state: what is saved.
      store: where it is saved.
      non_finite_names: returns the names of variables that hold NaN or infinity; then nothing is saved. None where an
        action before this one has stopped such a run.
      require_equal: raises if the replicas do not hold the same values; given the step.
      phases: entered while the run waits for the save.
    """
    self._state = state
    self._store = store
    self._non_finite_names = non_finite_names
    self._require_equal = require_equal
    self._phases = phases or Phases()

  def __call__(self, event: Event) -> None:
    if event.saves:
      self.save_what_is_new()

  def save_what_is_new(self) -> None:
    """Saves now, unless the checkpoint of this step is there already or its values must not be saved."""
    step = self._state.step
    if self._store.saved_step == step:
      return
    if self._non_finite_names is not None and (names := self._non_finite_names()):
      logging.error("Step %d is not saved: %d variables are not finite (%s).", step, len(names), ", ".join(names[:5]))
      return
    self.save()

  def save(self) -> None:
    """Saves now, whatever is due."""
    with self._phases(Phase.SAVE), self._state.packed():
      self._require_equal(self._state.step)
      self._store.save(self._state.step)


class SaveNothing:
  """The null object: `trainer.save_checkpoints` is off, or there is no folder."""

  def __call__(self, event: Event) -> None:
    """Nothing is due."""
    del event

  def save_what_is_new(self) -> None:
    """Nothing is saved."""

  def save(self) -> None:
    """Nothing is saved."""
