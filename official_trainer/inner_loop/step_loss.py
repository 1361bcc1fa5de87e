"""The loss in a step's logs, and how it enters the mean over examples (foundation F5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.data.padding import Batch
from official_trainer.task import LOSS_WEIGHT, Task


def add_loss(metric: tf_keras.metrics.Metric, logs: Mapping[str, Any], key: str, batch: Batch) -> None:
  """Adds one replica's loss to a mean over examples. A replica without examples adds nothing, not NaN.

  Args:
    metric: a `tf_keras.metrics.Mean`.
    logs: what the step returned. Without a weight among them, the loss counts for the examples of the batch.
    key: of the loss.
    batch: what the step was given.
  """
  loss = tf.cast(logs[key], tf.float32)
  weight = tf.cast(logs[LOSS_WEIGHT] if LOSS_WEIGHT in logs else _num_examples(batch), tf.float32)
  metric.update_state(tf.where(weight > 0, loss, tf.zeros_like(loss)), sample_weight=weight)


def build_term_means(task: Any) -> list[tf_keras.metrics.Metric]:
  """Makes the mean of each term of the loss; none for tasks of other libraries. Call under the strategy's scope."""
  names = task.loss_terms if isinstance(task, Task) else ()
  return [tf_keras.metrics.Mean(name, dtype=tf.float32) for name in names]


def add_terms(means: Iterable[tf_keras.metrics.Metric], logs: Mapping[str, Any], batch: Batch) -> None:
  """Adds one replica's terms to their means, which carry their names. Arguments as those of `add_loss`."""
  for mean in means:
    add_loss(mean, logs, mean.name, batch)


class LoopLoss:
  """The mean of a loss over one inner loop, where the metric that it goes into may span several."""

  def __init__(self, metric: tf_keras.metrics.Metric):
    """Stores a `tf_keras.metrics.Mean`."""
    self._metric = metric
    self._before = (0.0, 0.0)

  def begin(self, *, is_reset: bool) -> None:
    """Says that an inner loop begins, and whether the metric was reset for it. Runs eagerly."""
    self._before = (0.0, 0.0) if is_reset else self._sums()

  @property
  def mean(self) -> float | None:
    """The mean since `begin`; None if nothing came."""
    total, count = (after - before for after, before in zip(self._sums(), self._before, strict=True))
    return total / count if count > 0 else None

  def _sums(self) -> tuple[float, float]:
    return float(self._metric.total.numpy()), float(self._metric.count.numpy())


def mask_argument(batch: Batch) -> dict[str, tf.Tensor]:
  """Returns the argument `mask` of a step; left out rather than None, so that steps without it work on full batches."""
  return {} if batch.mask is None else {"mask": batch.mask}


def _num_examples(batch: Batch) -> tf.Tensor:
  if batch.mask is not None:
    return tf.reduce_sum(batch.mask)
  sizes = [tf.shape(leaf)[0] for leaf in tf.nest.flatten(batch.inputs) if leaf.shape.rank]
  return sizes[0] if sizes else tf.constant(1)
