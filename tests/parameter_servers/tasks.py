"""Tasks that keep count, on parameter servers, of how often each batch was trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.python.data.experimental.ops import testing

from official_trainer.config.experiment import ExperimentConfig
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.registry import register_experiment
from tests import tiny

MOST_EXAMPLES = 4096


class Counting(tf_keras.layers.Layer):
  """Passes its input on; `counts` says how often each example was."""

  def build(self, input_shape):
    self.counts = self.add_weight(
      name="counts", shape=[MOST_EXAMPLES], dtype=tf.int64, initializer="zeros", trainable=False
    )

  def call(self, inputs):
    return inputs


class CountingTask(tiny.TinyTask):
  """Examples carry their number, and each update adds to the counts of its examples."""

  def build_model(self):
    inputs = tf_keras.layers.Input((3,))
    hidden = Counting(name="counting")(inputs)
    for units in self.task_config.hidden:
      hidden = tf_keras.layers.Dense(units)(hidden)
    if self.task_config.dropout:
      hidden = tf_keras.layers.Dropout(self.task_config.dropout)(hidden)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(hidden))

  def build_source(self, params):
    if not params.is_training:
      return super().build_source(params)
    features, labels = tiny.examples(MOST_EXAMPLES)
    return ArraySource((features, {"label": labels, "number": np.arange(MOST_EXAMPLES)}))

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    features, labels = inputs
    logs = super().train_step((features, labels["label"]), model, optimizer, metrics, mask)
    numbers = labels["number"]
    counts = model.get_layer("counting").counts
    counts.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
    return logs


class SlowTask(CountingTask):
  """Reads its batches by a pipeline that takes 20 ms for each, and does not compute meanwhile."""

  def build_source(self, params):
    return None if params.is_training else super().build_source(params)

  def build_inputs(self, params, input_context=None):
    if not params.is_training:
      return super().build_inputs(params, input_context)
    features, labels = tiny.examples(MOST_EXAMPLES)
    dataset = tf.data.Dataset.from_tensor_slices((features, {"label": labels, "number": np.arange(MOST_EXAMPLES)}))
    return dataset.repeat().batch(params.global_batch_size, drop_remainder=True).apply(testing.sleep(20_000))


def counts_of(model: tf_keras.Model) -> np.ndarray:
  """Returns how often each example was trained on."""
  return model.get_layer("counting").counts.numpy()


@register_experiment("parameter_servers/counting")
def counting() -> ExperimentConfig:
  """Each batch counted; an order that is known."""
  config = tiny.experiment_config(
    seed=tiny.SEED, train_steps=600, steps_per_loop=200, checkpoint_interval=200, validation_interval=300
  )
  return dataclasses.replace(
    config,
    task=dataclasses.replace(
      config.task,
      task_class="tests.parameter_servers.tasks:CountingTask",
      train_data=DataConfig(global_batch_size=tiny.BATCH_SIZE, is_training=True, shuffle=False),
    ),
    trainer=dataclasses.replace(config.trainer, steps_per_closure=5),
    runtime=RuntimeConfig(
      seed=tiny.SEED, distribution_strategy="parameter_server", cluster_timeout_secs=60.0, grace_secs=10.0
    ),
  )


@register_experiment("parameter_servers/slow")
def slow() -> ExperimentConfig:
  """Likewise, with an input of 20 ms a batch, so that a run lasts long enough to be disturbed."""
  config = counting()
  return dataclasses.replace(
    config, task=dataclasses.replace(config.task, task_class="tests.parameter_servers.tasks:SlowTask")
  )
