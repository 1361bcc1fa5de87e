"""Tasks whose exports are tested, and exporters of them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.export.config import ExportConfig
from official_trainer.export.examples import Examples
from official_trainer.export.exporter import Exporter
from official_trainer.optim.config import EmaConfig
from official_trainer.optim.ema import NoEma, build_ema
from official_trainer.state import TrainState
from official_trainer.task import Task
from tests.export.reload_here import reload_here

WORDS = ["red", "green", "blue"]


class Softmax(Task):
  """Three numbers to two probabilities."""

  def build_model(self):
    return tf_keras.Sequential([
      tf_keras.layers.Input((3,)),
      tf_keras.layers.Dense(4, "relu"),
      tf_keras.layers.BatchNormalization(),
      tf_keras.layers.Dense(2),
    ])  # fmt: skip

  def postprocess(self, model_outputs):
    return tf.nn.softmax(model_outputs)


class Subclassed(Softmax):
  """A model that was built, but never called."""

  def build_model(self):
    class Model(tf_keras.Model):
      def __init__(self):
        super().__init__()
        self.dense = tf_keras.layers.Dense(2)

      def call(self, x, training=False):
        return self.dense(x["numbers"])

    model = Model()
    model.dense.build([None, 3])
    return model


class Words(Task):
  """Words are looked up by a layer and by the task, which has a variable of its own as well."""

  def __init__(self):
    super().__init__(None)
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.constant([10, 20, 30]))
    self.table = tf.lookup.StaticHashTable(keys, default_value=-1)
    self.offset = tf.Variable(5, trainable=False)
    self.unused = tf.Variable(tf.zeros([1000]), trainable=False)

  def build_model(self):
    return tf_keras.Sequential([
      tf_keras.layers.Input((), dtype=tf.string),
      tf_keras.layers.StringLookup(vocabulary=WORDS),
      tf_keras.layers.Embedding(4, 2),
    ])  # fmt: skip

  def serving_signatures(self, model):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def price(word):
      return {"price": self.table.lookup(word) + self.offset}

    return {**super().serving_signatures(model), "price": price}

  def serving_examples(self, signature, features):
    return {"word": features} if signature == "price" else super().serving_examples(signature, features)


FEATURES = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def state_of(model: Any, *, ema: EmaConfig | None = None, step: int = 7) -> TrainState:
  """Returns the state of a run whose averages, where there are any, are twice the weights."""
  averages = build_ema(model, ema, tf.identity) if ema else NoEma()
  for average in averages.averages:
    average.assign(average * 2.0)
  return TrainState(model=model, optimizer=None, ema=averages, global_step=tf.Variable(step, dtype=tf.int64))


def exporter_of(
  task: Any,
  state: TrainState,
  *,
  features: Any = FEATURES,
  reload: Any = reload_here,
  held: Any = contextlib.nullcontext,
  **settings: Any,
) -> Exporter:
  def batches() -> tf.data.Dataset:
    if features is None:
      raise OSError("no data")
    labels = np.zeros(len(tf.nest.flatten(features)[0]))
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(7)

  return Exporter(
    task,
    state,
    ExportConfig(**settings),
    examples=Examples(batches, fail if features is not None else str),
    experiment="tests/softmax",
    facts={"seed": 3},
    reload=reload,
    held=held,
  )


def fail(text: str) -> None:
  raise AssertionError(text)
