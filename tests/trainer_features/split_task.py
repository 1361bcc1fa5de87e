"""The tiny task with splits of its own, and scores that a test makes up for each step."""

from __future__ import annotations

import numpy as np

from official_trainer.data.arrays import ArraySource
from tests import tiny

NUM_VALIDATION = 7


def validation_examples() -> tuple[np.ndarray, np.ndarray]:
  features, labels = tiny.examples(tiny.NUM_EXAMPLES + NUM_VALIDATION)
  return features[-NUM_VALIDATION:], labels[-NUM_VALIDATION:]


class SplitTask(tiny.TinyTask):
  """Training data, or what `tfds_split` names: "train" is the training split, anything else seven other examples."""

  def build_source(self, params):
    is_train = params.is_training or params.tfds_split == "train"
    return ArraySource(tiny.examples() if is_train else validation_examples())


class Scored(SplitTask):
  """Reports `up` and `down` as `scores` says, step -> (up, down); notes each evaluation, and the batches it saw."""

  scores: dict[int, tuple[float, float]] = {}
  evaluated: list[tuple[int, list[int]]] = []

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, **({} if mask is None else {"mask": mask}))
    return {**logs, "first": inputs[0][:1, 0]}

  def aggregate_logs(self, state, step_outputs):
    starts = validation_examples()[0][::2, 0].tolist()  # Batches of two.
    return [*(state or []), starts.index(float(step_outputs["first"][0][0]))]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    self.evaluated.append((int(global_step), aggregated_logs))
    up, down = self.scores.get(int(global_step), (0.0, 1.0))
    return {"up": up, "down": down}


def scored(scores: dict[int, tuple[float, float]]) -> type[Scored]:
  return type("Scored", (Scored,), {"scores": scores, "evaluated": []})
