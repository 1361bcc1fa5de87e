"""The numbers of an optimizer that a checkpoint holds, although the config says them.

tf-keras saves a constant learning rate, and legacy optimizers save momentum and the like. A restore brings back what
they were: right for a run that goes on as it was, and for actions that have changed them; wrong where the config has
changed with permission, or where a new run starts from another run's checkpoint.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

_RATE = "learning_rate"


class Hyperparameters:
  """Puts back what the config says, and lowers the learning rate for recovery.

  Schedules are code, not numbers, and are never restored.
  """

  def __init__(self, *optimizers: Any, scales: bool):
    """Notes the numbers of new optimizers. Call under the strategy's scope, before anything is restored.

    Args:
      optimizers: tf-keras optimizers of either API, with or without loss scaling.
      scales: whether the learning rate may be lowered (`trainer.recovery_learning_rate_factor`): a schedule is then
        multiplied by a variable.
    """
    self._factor: tf.Variable | None = None
    self._configured: list[tuple[str, tf.Variable, float]] = []
    for optimizer in optimizers:
      inner = getattr(optimizer, "inner_optimizer", optimizer)
      variables, schedule = _variables_and_schedule(inner)
      self._configured += [(name, variable, float(variable.numpy())) for name, variable in variables.items()]
      if schedule is not None and scales:
        if self._factor is None:
          self._factor = tf.Variable(1.0, trainable=False, name="learning_rate_factor")
        inner.learning_rate = _Scaled(schedule, self._factor)

  def apply(self) -> None:
    """Puts back the numbers of the config. Runs eagerly, after a restore."""
    for _, variable, value in self._configured:
      variable.assign(value)

  def scale(self, factor: float) -> None:
    """Makes the learning rate `factor` times what the config says. Runs eagerly, after every restore."""
    if self._factor is not None:
      self._factor.assign(factor)
    for name, variable, value in self._configured:
      if name == _RATE:
        variable.assign(value * factor)


class NoHyperparameters:
  """The null object: there is no optimizer."""

  def apply(self) -> None:
    """Nothing to put back."""

  def scale(self, factor: float) -> None:
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


def _variables_and_schedule(inner: Any) -> tuple[dict[str, tf.Variable], Any]:
  """Returns the numbers that are variables, by name, and the schedule of the learning rate, or None."""
  if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
    values = {name: getattr(inner, name) for name in sorted(inner._hyper)}  # noqa: SLF001  # There is no public list.
  else:
    values = {_RATE: inner._learning_rate}  # noqa: SLF001  # The public property gives a value, not the schedule.
  variables = {name: value for name, value in values.items() if isinstance(value, tf.Variable)}
  rate = values.get(_RATE)
  return variables, rate if callable(rate) and _RATE not in variables else None
