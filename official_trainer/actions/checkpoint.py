"""Saves checkpoints when they are due."""

from __future__ import annotations

from official_trainer.actions.event import Event
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.state import TrainState


class SaveCheckpoint:
  """After an inner loop at whose end a checkpoint is due: commits the whole state."""

  def __init__(self, state: TrainState, store: CheckpointStore):
    self._state = state
    self._store = store

  def __call__(self, event: Event) -> None:
    if event.saves and self._store.saved_step != event.step:
      self.save()

  def save(self) -> None:
    """Saves now, whatever is due."""
    with self._state.packed():
      self._store.save(self._state.step)
