"""Tasks that a TPU would refuse, each for one reason. The line at fault ends in a comment "BAD"."""

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.data.arrays import ArraySource
from official_trainer.task import LOSS_WEIGHT
from official_trainer.trainer import Trainer
from tests import tiny


class Losses(tiny.TinyTask):
  """Adds `extra(labels, logits)`, a scalar, to each example's loss."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return super().build_losses(labels, model_outputs, aux_losses) + self.extra(labels, model_outputs)


class WhereOfOneArgument(Losses):
  def extra(self, labels, logits):
    positions = tf.where(labels > 0)  # BAD
    return tf.cast(tf.shape(positions)[0], tf.float32)


class BooleanMask(Losses):
  def extra(self, labels, logits):
    positive = tf.boolean_mask(logits, labels > 0)  # BAD
    return tf.reduce_sum(positive)


class Unique(Losses):
  def extra(self, labels, logits):
    kinds, _ = tf.unique(labels)  # BAD
    return tf.reduce_mean(tf.cast(kinds, tf.float32))


class Suppression(tiny.TinyTask):
  """Suppresses boxes in evaluation only."""

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    boxes = tf.tile(inputs[0][:, :1], [1, 4])
    kept = tf.image.non_max_suppression(boxes, inputs[0][:, 0], max_output_size=3)  # BAD
    return {**logs, "kept": tf.size(kept)}


class ComputedSize(Losses):
  def extra(self, labels, logits):
    largest = tf.reduce_max(labels)
    first = logits[:largest]  # BAD
    return tf.reduce_sum(first)


class Float64(Losses):
  def extra(self, labels, logits):
    weights = tf.constant(np.array([0.25, 0.75]))  # BAD
    return tf.reduce_sum(logits * tf.cast(weights, tf.float32))


class PyFunction(Losses):
  def extra(self, labels, logits):
    largest = tf.py_function(lambda x: x.numpy().max(), [tf.stop_gradient(logits)], tf.float32)  # BAD
    return tf.ensure_shape(largest, [])


class NumpyFunction(tiny.TinyTask):
  """As most people write a metric that needs scikit-learn."""

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = super().validation_step(inputs, model, metrics, mask)
    return {**logs, "score": tf.numpy_function(np.max, [inputs[0]], tf.float32)}  # BAD


class Summary(tiny.TinyTask):
  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    logs = super().train_step(inputs, model, optimizer, metrics, mask)
    tf.summary.scalar("loss_again", logs["loss"], step=0)  # BAD
    return logs


class Printed(Losses):
  def extra(self, labels, logits):
    tf.print("largest", tf.reduce_max(logits))  # BAD
    return 0.0


class NoKernel(Losses):
  def extra(self, labels, logits):
    square = tf.matmul(logits, logits, transpose_a=True)
    return tf.linalg.det(tf.stop_gradient(square))  # BAD


class TripCount(Losses):
  """A loop of as many rounds as the labels say, through which a gradient flows."""

  def extra(self, labels, logits):
    total, rounds = tf.reduce_sum(logits), tf.reduce_sum(labels)
    return tf.while_loop(lambda i, x: i < rounds, lambda i, x: (i + 1, tf.sin(x)), [0, total])[1]  # BAD


class GrowingArray(Losses):
  def extra(self, labels, logits):
    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for index in tf.range(4):
      rows = rows.write(index, tf.reduce_sum(tf.stop_gradient(logits)))  # BAD
    return tf.reduce_sum(rows.stack())


class AxisFromData(Losses):
  """Nothing is wrong with its shapes, but which axis it is must be known."""

  def extra(self, labels, logits):
    axis = tf.minimum(tf.reduce_max(labels), 1)
    return tf.reduce_sum(tf.cumsum(tf.stop_gradient(logits), axis))  # BAD


class GrowingVariable(Losses):
  """Every round of the loop has another shape; each operation alone has none that is wrong."""

  def extra(self, labels, logits):
    first = tf.stop_gradient(logits)[:1, 0]
    longer = tf.TensorShape([None])
    loop = [lambda x: tf.size(x) < 4, lambda x: (tf.concat([x, x], 0),), [first]]
    return tf.reduce_sum(tf.while_loop(*loop, shape_invariants=[longer])[0])  # BAD


class InBranches(Losses):
  """The line is in a branch of a condition inside a loop inside a function."""

  def extra(self, labels, logits):
    return self.deep(labels, tf.stop_gradient(logits))

  @tf.function
  def deep(self, labels, logits):
    total = tf.constant(0.0)
    for _ in tf.range(3):
      if tf.reduce_sum(labels) > 1:
        total += tf.reduce_sum(tf.boolean_mask(logits, labels > 0))  # BAD
    return total


class InModel(tiny.TinyTask):
  """The line runs once, when the model is built; Keras replays it in every step."""

  def build_model(self):
    inputs = tf_keras.layers.Input((3,))
    hidden = tf_keras.layers.Dense(4)(inputs)
    kept = tf.boolean_mask(hidden, hidden[:, 0] > -1e9)  # BAD
    return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(hidden) + tf.reduce_sum(kept))


class PaddedToTheLongest(tiny.FiniteTask):
  """Sequences of as many columns as the longest of each batch has."""

  def build_inputs(self, params, input_context=None):  # BAD
    lengths = tf.data.Dataset.range(1, 21)
    rows = lengths.map(lambda n: (tf.ones([n]), tf.cast(n % 2, tf.int32)))
    return rows.padded_batch(params.global_batch_size)

  def build_model(self):
    inputs = tf_keras.layers.Input((None,))
    return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(tf.reduce_sum(inputs, axis=1, keepdims=True)))


class Named(tiny.TinyTask):
  """Every example has a name, which the replicas are given."""

  def build_source(self, params):  # BAD
    features, labels = tiny.examples()
    names = np.array([f"example {number}" for number in range(len(labels))])
    return ArraySource(({"x": features, "name": names}, labels))

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    features, labels = inputs
    return super().train_step((features["x"], labels), model, optimizer, metrics, mask)

  def validation_step(self, inputs, model, metrics=None, mask=None):
    features, labels = inputs
    return super().validation_step((features["x"], labels), model, metrics, mask)


class NotAGraph(Losses):
  def extra(self, labels, logits):
    return float(logits.numpy().max())  # BAD


ACCEPTED_BY_XLA_ON_A_CPU = (
  WhereOfOneArgument,
  BooleanMask,
  Unique,
  Suppression,
  ComputedSize,
  Float64,
  AxisFromData,
  InBranches,
  InModel,
)

BAD = {
  WhereOfOneArgument: ("value-dependent shape", "Where"),
  BooleanMask: ("value-dependent shape", "Where"),
  Unique: ("value-dependent shape", "Unique"),
  Suppression: ("value-dependent shape", "NonMaxSuppressionV3"),
  ComputedSize: ("unknown dimension", "StridedSlice"),
  Float64: ("float64", "Const"),
  PyFunction: ("host callback", "EagerPyFunc"),
  NumpyFunction: ("host callback", "PyFunc"),
  Summary: ("summary", "WriteSummary"),
  Printed: ("host callback", "PrintV2"),
  NoKernel: ("no XLA kernel", "MatrixDeterminant"),
  TripCount: ("dynamic trip count", "EmptyTensorList"),
  GrowingArray: ("dynamic trip count", "TensorListSetItem"),
  AxisFromData: ("computed argument", "Cumsum"),
  GrowingVariable: ("refused by XLA", "StatelessWhile"),
  InBranches: ("value-dependent shape", "Where"),
  InModel: ("value-dependent shape", "Where"),
  PaddedToTheLongest: ("unknown dimension", "input 0 of the replicas (float32 [batch, None])"),
  Named: ("string", "input 0 of the replicas (string [batch])"),
  NotAGraph: ("cannot be traced", "AttributeError"),
}
"""Task -> the kind and the operation of the finding."""


class Everything(tiny.TinyTask):
  """What a TPU can do, and checks that it drops."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    tf.debugging.assert_less(labels, 2, message="no such class")
    losses = super().build_losses(labels, model_outputs, aux_losses)
    for _ in tf.range(tf.shape(labels)[0]):  # As many rounds as the batch has rows, which is static.
      losses += 0.1 * tf.math.top_k(tf.nn.softmax(model_outputs), 1)[0][:, 0]
    if tf.reduce_sum(labels) > 100:
      losses = tf.where(labels > 0, losses, 0.0)
    return losses + tf.cast(tf.range(tf.shape(labels)[0], dtype=tf.int64), tf.float32)


class NamesOnTheHost(Named):
  """The same names, which the trainer below keeps on the host."""

  def aggregate_logs(self, state, step_outputs):
    return [*(state or []), step_outputs["name"]]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {"last_name": aggregated_logs[-1]}

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    return tiny.TinyTask.train_step(self, inputs, model, optimizer, metrics, mask)

  def validation_step(self, inputs, model, metrics=None, mask=None):
    logs = tiny.TinyTask.validation_step(self, inputs, model, metrics, mask)
    return {"loss": logs["loss"], LOSS_WEIGHT: logs[LOSS_WEIGHT]}


class HostTrainer(Trainer):
  """Gives the replicas numbers only."""

  def next_train_inputs(self, iterator):
    batch = next(iterator)
    features, labels = batch.inputs
    return batch._replace(inputs=(features["x"], labels))

  def next_eval_inputs(self, iterator):
    batch = next(iterator)
    features, labels = batch.inputs
    return batch._replace(inputs=(features["x"], labels)), {"name": features["name"]}
