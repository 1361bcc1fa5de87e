"""What a run ends with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import tf_keras

from official_trainer.actions.event import scalars_of
from official_trainer.state import TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """What a run ends with.

  Attributes:
    model: the trained model, raw weights in place.
    state: the final state: step, history, best records.
    logs: the logs of the last evaluation as the trainer returned them, {} without one.
    model_dir: where everything was written.
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
  def history_path(self) -> str:
    return os.path.join(self.model_dir, "history.jsonl")
