"""What a run starts from: its own newest checkpoint, a given one, another program's, or fresh weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer import initialisation
from official_trainer.atomic import write_text
from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.locate import find_checkpoint, is_model_only, recorded_step
from official_trainer.checkpoint.restoring import restore_exactly, restore_matching
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.errors import ConfigError, TrainingDiverged
from official_trainer.run.elastic import change_of_replicas
from official_trainer.trainer import Trainer

INIT_REPORT = "init_report.txt"
"""The file in model_dir that lists what a fresh run took from pretrained weights."""

UNUSED_BY_EVALUATION = ("optimizer", "group_optimizers")
"""Roots of a checkpoint that an evaluation, which has no optimizer, leaves alone."""


class Start:
  """Brings a trainer's state to where a run begins. Call its methods under the strategy's scope."""

  def __init__(
    self,
    trainer: Trainer,
    store: CheckpointStore,
    non_finite_names: Callable[[], list[str]],
    *,
    checkpoint: str | None = None,
    allow_untrained: bool = False,
    may_differ: Collection[str] = (),
    note: Callable[[str], None] = logging.info,
    warn: Callable[[str], None] = logging.warning,
  ):
    """Stores its arguments; restores nothing.

    Args:
      trainer: whose state is filled.
      store: the run's own checkpoints.
      non_finite_names: returns the names of variables that hold NaN or infinity.
      checkpoint: path given by the user, or None.
      allow_untrained: whether untrained weights may be evaluated when there is no checkpoint.
      may_differ: variables that may differ between the model and the checkpoint that is read.
      note: shows a line.
      warn: shows a warning.
    """
    self._trainer = trainer
    self._state = trainer.state
    self._store = store
    self._non_finite_names = non_finite_names
    self._checkpoint = checkpoint
    self._allow_untrained = allow_untrained
    self._may_differ = may_differ
    self._note = note
    self._warn = warn

  def resume_or_initialise(self) -> bool:
    """Brings the state to the run's beginning, from the first of these that is there.

    1. the newest checkpoint of this folder's run; 2. the checkpoint given by `--checkpoint`; 3. one of another program
    in the folder; 4. pretrained weights: the task's `initialize`, `task.init`, `task.init_backbone`; 5. initial ones.
    A line says which.

    Returns:
      Whether the folder's run was resumed.

    Raises:
      CheckpointMismatch: if the folder's checkpoint is that of another model, or pretrained weights do not fit.
      ConfigError: if there is no checkpoint at the given path, or pretrained weights cannot be read.
    """
    step = self._store.restore_latest(self._may_differ)
    if step is not None:
      self._state.unpack()
      self._note(f"resumed at step {step} from {self._store.source}")
      self._note_replicas(manifest.read(manifest.checkpoint_prefix(self._store.source, step)))
      return True
    if self._checkpoint is not None:
      prefix = self._load(self._checkpoint, "--checkpoint", unused_roots=())
      self._state.host.best.clear()  # The best weights of that run are in its own folder.
      self._state.host.spent_secs = None  # And so is the time that it took.
      if not tf.io.gfile.exists(manifest.manifest_path(prefix)):
        self._state.global_step.assign(0)  # Weights alone, or another program's: a run of its own begins.
      self._note(f"started from {self._checkpoint} at step {self._state.step}")
      self._note_unused_sources()
    elif (foreign := self._store.foreign_checkpoint()) is not None:
      self._load_foreign(foreign)
      self._note_unused_sources()
    else:
      self._initialise()
    return False

  def _initialise(self) -> None:
    """Takes pretrained weights from where the config says, and notes what came from where."""
    # A trainer of the user's own may return nothing, as Model Garden's does.
    reports = self._trainer.initialize() or []
    for report in reports:
      self._note(report.summary())
    if reports:
      path = os.path.join(self._store.directory, INIT_REPORT)
      write_text(path, "\n".join(report.text() for report in reports))
    else:
      self._note("a new run begins: no checkpoint in its folder, no --checkpoint and no task.init")

  def _note_unused_sources(self) -> None:
    """Says of what the config names that something that comes first stood in its place."""
    for key in initialisation.sources(self._trainer.config.task):
      self._note(f"{key} is not used: a checkpoint comes before it")

  def _note_replicas(self, written: Mapping[str, Any]) -> None:
    now = self._trainer.strategy.num_replicas_in_sync
    if line := change_of_replicas(written.get("num_replicas", now), now, self._state.model):
      self._note(line)

  def load_for_evaluation(self) -> None:
    """Loads the given checkpoint, or the folder's newest.

    Raises:
      ConfigError: if there is none and untrained weights are not allowed.
    """
    path = self._checkpoint or self._store.source
    if find_checkpoint(path) is None and self._allow_untrained:
      self._warn(f"{path} holds no checkpoint: untrained weights are evaluated.")
      self._trainer.initialize()
      return
    self._load(path, "--checkpoint" if self._checkpoint else "--model_dir", unused_roots=UNUSED_BY_EVALUATION)

  def require_finite(self) -> None:
    """Raises TrainingDiverged if the state that training would start from is not finite."""
    if names := self._non_finite_names():
      raise TrainingDiverged(
        step=self._state.step,
        what=f"{len(names)} variables are not finite before the first step: {', '.join(names[:5])}",
      )

  def _load(self, path: str, flag: str, *, unused_roots: Sequence[str]) -> str:
    """Restores the checkpoint that `path` means, a whole state or weights only, and returns its prefix."""
    prefix = find_checkpoint(path)
    if prefix is None:
      raise ConfigError.of(flag, f"there is no checkpoint at {path!r}. Train first, or give another path.")
    if is_model_only(prefix):
      restore_exactly(tf.train.Checkpoint(model=self._state.model), prefix, may_differ=self._may_differ)
      self._state.ema.reset()
      self._state.host.clear()
      self._state.global_step.assign(recorded_step(prefix))
    elif tf.io.gfile.exists(manifest.manifest_path(prefix)):
      manifest.verify(prefix)
      restore_exactly(self._state.checkpoint, prefix, unused_roots=unused_roots, may_differ=self._may_differ)
      self._state.unpack()
    else:
      self._load_foreign(prefix)
    return prefix

  def _load_foreign(self, prefix: str) -> None:
    self._warn(f"{prefix} has no manifest: another program wrote it. Its weights and its step are used.")
    # Every weight, then what else fits: weights that stay random must not pass for pretrained ones.
    restore_exactly(
      tf.train.Checkpoint(model=self._state.model), prefix, unused_roots=None, may_differ=self._may_differ
    )
    restore_matching(self._state.checkpoint, prefix)
    self._state.ema.reset()
    self._state.host.clear()
    self.require_finite()
