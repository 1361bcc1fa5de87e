"""What a run ends with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.actions.event import scalars_of
from official_trainer.checkpoint.manifest import checkpoint_prefix, committed_steps
from official_trainer.state import TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """What a run ends with.

  Attributes:
    model: the trained model, raw weights in place.
    state: the final state: step, history, best records.
    logs: the logs of the last evaluation as the trainer returned them, {} without one.
    model_dir: where everything was written; "" if there is no such place.
  """

  model: tf_keras.Model
  state: TrainState
  logs: Mapping[str, Any]
  model_dir: str

  @property
  def step(self) -> int:
    return self.state.step

  @property
  def ended_early(self) -> str | None:
    """Why the run was done before its last step; None for one that trained all of them."""
    return self.state.host.finished

  @property
  def metrics(self) -> dict[str, float]:
    """The scalars among the logs, nested names joined by "/"."""
    return scalars_of(self.logs)

  @property
  def history_path(self) -> str | None:
    """The file of the history, None if none was written."""
    return self._existing(os.path.join(self.model_dir, "history.jsonl"))

  @property
  def checkpoint_path(self) -> str | None:
    """The prefix of the newest checkpoint, None if none was saved."""
    steps = committed_steps(self.model_dir) if self.model_dir else []
    return checkpoint_prefix(self.model_dir, steps[-1]) if steps else None

  @property
  def config_path(self) -> str | None:
    """The config, as `--config_file` takes it; None if it was not written."""
    return self._existing(os.path.join(self.model_dir, "params.yaml"))

  def _existing(self, path: str) -> str | None:
    return path if self.model_dir and tf.io.gfile.exists(path) else None
