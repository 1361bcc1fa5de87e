"""A factor on the learning rate, which recovery lowers (`trainer.recovery_learning_rate_factor`)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras


class LearningRateScale:
  """Multiplies an optimizer's learning rate, be it a value or a schedule, without a new trace."""

  def __init__(self, optimizer: Any):
    """Puts the factor, 1 at first, into the optimizer. Call under the strategy's scope, before anything is restored.

    Args:
      optimizer: a tf-keras optimizer of either API, with or without loss scaling.
    """
    self._inner = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = self._schedule()
    self._factor: tf.Variable | None = None
    self._rate = 0.0
    if schedule is None:
      self._rate = float(self._inner.learning_rate)
    else:
      self._factor = tf.Variable(1.0, trainable=False, name="learning_rate_factor")
      self._inner.learning_rate = _Scaled(schedule, self._factor)

  def set(self, factor: float) -> None:
    """Makes the learning rate `factor` times what the config says. Runs eagerly, after every restore."""
    if self._factor is None:
      self._inner.learning_rate = self._rate * factor
    else:
      self._factor.assign(factor)

  def _schedule(self) -> Any:
    if isinstance(self._inner, tf_keras.optimizers.legacy.Optimizer):
      rate = self._inner.learning_rate
    else:
      rate = self._inner._learning_rate  # noqa: SLF001  # The public property gives the last value, not the schedule.
    return rate if callable(rate) and not isinstance(rate, tf.Variable) else None


class NoLearningRateScale:
  """The null object: the learning rate is what the config says."""

  def set(self, factor: float) -> None:
    """Nothing to scale."""
    del factor


class _Scaled(tf_keras.optimizers.schedules.LearningRateSchedule):
  def __init__(self, schedule: Any, factor: tf.Variable):
    super().__init__()
    self._schedule = schedule
    self._factor = factor

  def __call__(self, step: Any) -> tf.Tensor:
    return self._schedule(step) * self._factor

  def get_config(self) -> dict[str, Any]:
    return {"schedule": self._schedule, "factor": float(self._factor)}
