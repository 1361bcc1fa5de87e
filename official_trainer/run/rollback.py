"""Going back to the last good checkpoint, and what must not be forgotten by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.errors import BrokenCheckpoint, CheckpointMismatch, TrainingDiverged
from official_trainer.run_record import Recovery, RunRecord, load_record
from official_trainer.timing.phases import Enter, Phase
from official_trainer.trainer import Trainer


class RollBackToCheckpoint:
  """Puts a trainer back to the newest checkpoint, without the batches that it diverged on.

  How often that was done, and what is left out since, stands in the run's record, which is written before anything is
  put back: a kill in between, or going back once more, cannot make the run forget it.
  """

  def __init__(
    self,
    trainer: Trainer,
    store: CheckpointStore,
    *,
    learning_rate_factor: float,
    phases: Enter,
    restored: Callable[[], None],
  ):
    """Stores its arguments; reads nothing.

    Args:
      trainer: whose state goes back.
      store: the run's checkpoints. Its folder holds the run's record.
      learning_rate_factor: on the learning rate, for each time the run went back.
      phases: entered while the run goes back.
      restored: called when the state is back at its checkpoint, for what was written about later steps.
    """
    self._trainer = trainer
    self._store = store
    self._learning_rate_factor = learning_rate_factor
    self._phases = phases
    self._restored = restored

  def begin(self) -> None:
    """Applies what the record of the run says. Call before the first step, after the state was restored."""
    self._apply(self._record())

  def tried(self) -> list[str]:
    """Returns what was done so far, one text for each time."""
    return [str(recovery) for recovery in self._record().recoveries]

  def window(self, start: int, end: int) -> tuple[int, int]:
    """Returns (first, end) of the batches that the updates from step `start` to step `end` used."""
    return self._trainer.skipped_batches.window_of(start, end)

  def run(self, window: tuple[int, int], what: str, step: int) -> int:
    """Goes back.

    Args:
      window: (first, end) of the batches to leave out from now on.
      what: what had diverged.
      step: completed updates when it was noticed.

    Returns:
      The step at which the run is now.

    Raises:
      BrokenCheckpoint: if there is no good checkpoint to go back to.
      TrainingDiverged: if the newest one is that of another model (`--allow_checkpoint_mismatch`).
    """
    with self._phases(Phase.RESTORE):
      self._store.wait()  # The newest one may still be on its way to disk.
      newest = max(self._store.steps(), default=None)
      recovery = Recovery(step=step, first=window[0], end=window[1], what=what, back_to=newest)
      before = self._record()
      record = before.recovered(recovery)
      record.save(self._store.directory)
      try:
        restored = self._store.restore_latest()
      except CheckpointMismatch as error:
        raise TrainingDiverged(
          step,
          f"{what}. Nothing was saved since the run began with another model than its checkpoint's, so there is nothing"
          f" to go back to. Started again, it leaves out batches {window[0]} to {window[1] - 1}",
        ) from error
      if restored is None:
        raise BrokenCheckpoint(f"there is no checkpoint in {self._store.directory} to go back to after step {step}.")
      if restored != newest:  # The newest one was broken.
        record = before.recovered(dataclasses.replace(recovery, back_to=restored))
        record.save(self._store.directory)
      self._trainer.state.unpack()
      self._apply(record)
    self._restored()
    return restored

  def _apply(self, record: RunRecord) -> None:
    self._trainer.leave_out([recovery.window for recovery in record.recoveries])
    if self._learning_rate_factor < 1:
      self._trainer.hyperparameters.scale(self._learning_rate_factor ** len(record.recoveries))

  def _record(self) -> RunRecord:
    return load_record(self._store.directory) or RunRecord(seed=self._trainer.seed)
