"""Classifiers of a few parameters with a backbone, and pretrained ones in files of several kinds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from tests import tiny

layers = tf_keras.layers


@dataclasses.dataclass(frozen=True)
class Names:
  """What the layers are called."""

  backbone: str = "backbone"
  stem: str = "stem"
  norm: str = "norm"
  block: str = "block"
  head: str = "head"


OURS = Names()
THEIRS = Names(backbone="resnet", stem="conv_in", norm="bn", block="conv_mid", head="logits")

BACKBONE = [
  "backbone/stem/kernel",
  "backbone/stem/bias",
  "backbone/norm/gamma",
  "backbone/norm/beta",
  "backbone/norm/moving_mean",
  "backbone/norm/moving_variance",
  "backbone/block/kernel",
  "backbone/block/bias",
]
HEAD = ["head/kernel", "head/bias"]


def build_backbone(names: Names = OURS) -> tf_keras.Model:
  inputs = layers.Input((3,))
  outputs = layers.BatchNormalization(name=names.norm)(layers.Dense(4, name=names.stem)(inputs))
  return tf_keras.Model(inputs, layers.Dense(2, name=names.block)(outputs), name=names.backbone)


def classifier(num_classes: int = 2, names: Names = OURS) -> tf_keras.Model:
  """Returns a model of `BACKBONE` and `HEAD` whose backbone is a nested model."""
  inputs = layers.Input((3,))
  backbone = build_backbone(names)
  model = tf_keras.Model(inputs, layers.Dense(num_classes, name=names.head)(backbone(inputs)))
  model.checkpoint_items = {"backbone": backbone}
  return model


def numbered(model: tf_keras.Model, start: float = 1.0) -> tf_keras.Model:
  """Fills the i-th variable with start + i."""
  for index, variable in enumerate(model.variables):
    variable.assign(np.full(variable.shape, start + index, variable.dtype.as_numpy_dtype))
  return model


def values(model: tf_keras.Model) -> list[np.ndarray]:
  return [variable.numpy() for variable in model.variables]


class BackboneTask(tiny.TinyTask):
  """The tiny task with a backbone."""

  def build_model(self) -> tf_keras.Model:
    return classifier()


def train_theirs(folder: Any) -> str:
  """Trains a classifier of ten classes, with other names, for two steps by Model Garden's own trainer.

  Returns:
    The prefix of its checkpoint, which has the roots model, optimizer, global_step and backbone.
  """
  from official.core import base_task, config_definitions, train_lib
  from official.modeling import optimization

  class Theirs(base_task.Task):
    def build_model(self):
      return numbered(classifier(10, THEIRS), start=20.0)

    def build_inputs(self, params, input_context=None):
      features, labels = tiny.examples()
      return tf.data.Dataset.from_tensor_slices((features, labels)).batch(4).repeat()

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True))

  params = config_definitions.ExperimentConfig(
    task=config_definitions.TaskConfig(train_data=config_definitions.DataConfig(global_batch_size=4)),
    trainer=config_definitions.TrainerConfig(
      train_steps=2,
      steps_per_loop=2,
      checkpoint_interval=2,
      optimizer_config=optimization.OptimizationConfig({
        "optimizer": {"type": "adamw"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
      }),
    ),
  )  # fmt: skip
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  with strategy.scope():
    task = Theirs(params.task)
  train_lib.run_experiment(strategy, task, "train", params, str(folder), save_summary=False)
  return tf.train.latest_checkpoint(str(folder))
