"""Tasks that recognise handwritten digits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.data import seeds as draw
from official_trainer.data.source import RandomAccessSource
from official_trainer.data.tfds import num_examples, tfds_source
from official_trainer.experiments.digits.images import load_split
from official_trainer.experiments.digits.network import build_cnn, build_mlp
from official_trainer.task import Task

IMAGE_SHAPE = (8, 8, 1)


class DigitsTask(Task):
  """A convolutional network on a TFDS set of images of one size, with ten classes."""

  image_shape = IMAGE_SHAPE

  def build_model(self) -> tf_keras.Model:
    model = self.task_config.model
    return build_cnn(
      self.image_shape,
      filters=model.filters,
      dropout_rate=model.dropout_rate,
      batchnorm_synchronized=model.batchnorm_synchronized,
    )

  def build_source(self, params: Any) -> RandomAccessSource:
    """Returns (image float32 [n, height, width, channels] in [0, 1], label int32 [n])."""
    source = tfds_source(params).map(lambda example: (example["image"], example["label"]))
    if params.is_training:
      source = source.augment(lambda batch, seeds: (shift(batch[0], seeds), batch[1]))
    return source.map(_normalised)

  def count_examples(self, params: Any) -> int:
    return num_examples(params)

  def build_losses(self, labels, model_outputs, aux_losses=None) -> tf.Tensor:
    """Returns the cross entropy of each example, float32 [batch]."""
    del aux_losses  # Added by the step.
    return _cross_entropy(labels, model_outputs)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    del training
    return [tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


class DigitsMlpTask(Task):
  """Dense layers on a plain `tf.data` pipeline: the smallest example of a task."""

  def build_model(self) -> tf_keras.Model:
    return build_mlp(IMAGE_SHAPE, hidden_units=self.task_config.model.hidden_units)

  def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(load_split("train" if params.is_training else "test"))
    batch_size = params.global_batch_size
    if input_context is not None:
      batch_size = input_context.get_per_replica_batch_size(batch_size)
      dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if params.is_training:
      # A seed makes the order a function of the config, so that skipping resumes exactly.
      dataset = dataset.shuffle(params.shuffle_buffer_size, seed=params.seed or 0).repeat()
    dataset = dataset.batch(batch_size, drop_remainder=bool(params.is_training))
    return dataset.map(lambda images, labels: _normalised((images, labels))).prefetch(8)

  def build_losses(self, labels, model_outputs, aux_losses=None) -> tf.Tensor:
    del aux_losses
    return _cross_entropy(labels, model_outputs)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    del training
    return [tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def shift(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
  """Moves each image by -1, 0 or 1 pixels along each side; zeros come in.

  Args:
    images: [n, height, width, channels], static but for n.
    seeds: int32 [n, 2].

  Returns:
    As `images`.
  """
  height, width, channels = images.shape[1:]
  padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
  pixels = tf.reshape(padded, [-1, (height + 2) * (width + 2), channels])
  window = tf.range(height)[:, tf.newaxis] * (width + 2) + tf.range(width)
  corner = draw.integers(seeds, 2, 3)
  first = corner[:, 0] * (width + 2) + corner[:, 1]
  chosen = first[:, tf.newaxis] + tf.reshape(window, [1, -1])
  return tf.reshape(tf.gather(pixels, chosen, batch_dims=1), [-1, height, width, channels])


def _normalised(batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
  images, labels = batch
  return tf.cast(images, tf.float32) / 255.0, tf.cast(labels, tf.int32)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  return tf_keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
