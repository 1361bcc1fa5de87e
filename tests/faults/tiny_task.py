"""The tiny regression that both stacks train: everything of it that does not depend on the stack."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from tests.faults.stack import Job, Outcome

WEIGHTS = 3
ID, POISON = WEIGHTS, WEIGHTS + 1


def _linear(job: Job) -> list[Any]:
  start = tf.constant_initializer(np.asarray(job.initial, np.float32))
  return [tf_keras.layers.Dense(1, kernel_initializer=start, dtype="float32")]


def _hidden(*inner: Callable[[], Any]) -> Callable[[Job], list[Any]]:
  def build(job: Job) -> list[Any]:
    start = tf_keras.initializers.GlorotUniform(seed=5)
    last = tf_keras.initializers.GlorotUniform(seed=6)
    dense = tf_keras.layers.Dense(4, kernel_initializer=start, name="hidden")
    return [dense, *(make() for make in inner), tf_keras.layers.Dense(1, kernel_initializer=last, dtype="float32")]

  return build


def _deeper(job: Job) -> list[Any]:
  """The linear model and one more layer behind it."""
  return [*_linear(job), tf_keras.layers.Dense(1, dtype="float32")]


def _wide(job: Job) -> list[Any]:
  """65,536 outputs: 1 MB for a batch of four examples."""
  return [tf_keras.layers.Dense(1 << 16, kernel_initializer="zeros")]


LAYERS: dict[str, Callable[[Job], list[Any]]] = {
  "linear": _linear,
  "deeper": _deeper,
  "wide": _wide,
  "hidden": _hidden(),
  "batchnorm": _hidden(lambda: tf_keras.layers.BatchNormalization(momentum=0.5)),
  "dropout": _hidden(lambda: tf_keras.layers.Dropout(0.5)),
}


def build_model(job: Job) -> Any:
  if job.layers == "keras 3":
    keras = importlib.import_module("keras")
    return keras.Sequential([keras.layers.Input((_num_columns(job),)), keras.layers.Dense(1)])
  inputs = tf_keras.layers.Input((_num_columns(job),))
  outputs = inputs[:, :WEIGHTS]
  for layer in LAYERS[job.layers](job):
    outputs = layer(outputs)
  return tf_keras.Model(inputs, outputs)


def examples(job: Job, training: bool) -> tuple[np.ndarray, np.ndarray]:
  """Returns features, float32 [n, columns], with the id behind the three that count, and labels, float32 [n, 2]."""
  size = job.num_examples if training else job.num_validation
  generator = np.random.default_rng(1 if training else 2)
  features = generator.normal(size=(size, _num_columns(job))).astype(np.float32)
  target = features[:, :WEIGHTS] @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25
  features[:, ID] = np.arange(size)
  features[:, POISON] = 0
  if training:
    features[list(job.nan_ids), :WEIGHTS] = np.nan
    features[list(job.nan_gradient_ids), POISON] = 1
  return features, np.stack([target, features[:, POISON]], axis=1).astype(np.float32)


def write_examples(job: Job, path: str) -> None:
  """Writes the training examples into one TFRecord file: of each the features and behind them the two labels."""
  with tf.io.TFRecordWriter(path) as writer:
    for features, labels in zip(*examples(job, training=True), strict=True):
      writer.write(np.concatenate([features, labels]).tobytes())


def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns features and labels of a record that `write_examples` wrote for a job without extra columns."""
  values = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [POISON + 3])
  return values[: POISON + 1], values[POISON + 1 :]


def squared_errors(job: Job, weights: list[np.ndarray]) -> np.ndarray:
  """Returns the squared error of each validation example under the weights of the "linear" model, float64 [n]."""
  kernel, bias = (np.asarray(value, np.float64) for value in weights)
  features, labels = examples(job, training=False)
  return np.square((features[:, :WEIGHTS] @ kernel + bias)[:, 0] - labels[:, 0])


class NumExamples(tf_keras.metrics.Metric):
  """Counts the examples that a metric sees."""

  def __init__(self, name: str = "num_examples"):
    super().__init__(name=name)
    self._count = self.add_weight("count", initializer="zeros")

  def update_state(self, y_true, y_pred, sample_weight=None):
    del y_pred
    presence = tf.ones(tf.shape(y_true)[:1]) if sample_weight is None else sample_weight
    self._count.assign_add(tf.reduce_sum(tf.cast(presence, tf.float32)))

  def result(self):
    return tf.identity(self._count)


class TinyRegression:
  """Methods that both stacks' Task classes take as they are; mixed in before one of them."""

  loss_is_mean = False  # Whether build_losses returns a replica's mean, as Model Garden's tasks do.
  job: Job
  outcome: Outcome

  def join(self, job: Job, outcome: Outcome) -> None:
    """Says which job this is, and where to tell what happens."""
    self.job, self.outcome = job, outcome
    self.model: Any = None
    outcome.traces = {"train": 0, "validation": 0}

  def build_model(self):
    self.model = build_model(self.job)
    return self.model

  def build_losses(self, labels, model_outputs, aux_losses=None):
    del aux_losses
    outputs = _poisoned(tf.cast(model_outputs, tf.float32)[:, 0], labels[:, 1])
    losses = tf.square(outputs - labels[:, 0])
    return tf.reduce_mean(losses) if self.loss_is_mean else losses

  def build_metrics(self, training=True):
    return [NumExamples()]

  def train_step(self, inputs, *args, **kwargs):
    self.outcome.traces["train"] += 1
    _tell(self._on_train, _present_ids(inputs, kwargs))
    return super().train_step(inputs, *args, **kwargs)

  def validation_step(self, inputs, *args, **kwargs):
    self.outcome.traces["validation"] += 1
    _tell(self._on_eval, _present_ids(inputs, kwargs))
    return super().validation_step(inputs, *args, **kwargs)

  def aggregate_logs(self, state, step_outputs):
    return state or {"seen": True}

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    step = int(tf.convert_to_tensor(global_step))
    self.outcome.eval_weights[step] = [v.numpy() for v in self.model.variables]
    return {} if self.job.score is None else {"score": self.job.score(step)}

  def decoded(self, features):
    """Passes features on; tells `on_read` which examples they are."""
    if self.job.on_read is not None:
      _tell(self.job.on_read, features[:, ID])
    return features

  def _on_train(self, ids: np.ndarray) -> None:
    if self.job.on_train is not None:
      self.job.on_train(ids)
    self.outcome.trained.append([int(i) for i in ids])

  def _on_eval(self, ids: np.ndarray) -> None:
    if self.job.on_eval is not None:
      self.job.on_eval(ids)
    self.outcome.evaluated.append([int(i) for i in ids])


def _num_columns(job: Job) -> int:
  return POISON + 1 + job.extra_columns


def _present_ids(inputs: Any, kwargs: dict[str, Any]) -> tf.Tensor:
  ids = inputs[0][:, ID]
  mask = kwargs.get("mask")
  return ids if mask is None else tf.boolean_mask(ids, mask > 0)


def _tell(listener: Callable[[np.ndarray], None], ids: tf.Tensor) -> None:
  """Calls Python with a tensor, in its place among the operations of a step."""

  def call(values: np.ndarray) -> np.int32:
    listener(values.astype(np.int64))
    return np.int32(0)

  tf.numpy_function(call, [tf.cast(ids, tf.float32)], tf.int32)


@tf.custom_gradient
def _poisoned(values: tf.Tensor, poison: tf.Tensor):
  """Returns `values`; the gradient is NaN where `poison` is set."""

  def gradient(upstream):
    return tf.where(poison > 0, tf.fill(tf.shape(upstream), float("nan")), upstream), tf.zeros_like(poison)

  return tf.identity(values), gradient
