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
        scale_learning_rate(inner, self._factor)

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


def scale_learning_rate(inner: Any, factor: tf.Variable) -> None:
  """Multiplies the learning rate of an optimizer by a variable. Call under the strategy's scope.

  Args:
    inner: a tf-keras optimizer of either API, without loss scaling.
    factor: float32 scalar variable, read at every update.
  """
  _, schedule = _variables_and_schedule(inner)
  scaled = _Scaled(inner.learning_rate if schedule is None else schedule, factor)
  if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
    inner.learning_rate = scaled
  else:  # Makes the variable that holds the present rate, too.
    inner._learning_rate = inner._build_learning_rate(scaled)  # noqa: SLF001


class _Scaled(tf_keras.optimizers.schedules.LearningRateSchedule):
  """A schedule, or a variable that holds a constant, times a variable."""

  def __init__(self, rate: Any, factor: tf.Variable):
    super().__init__()
    self._rate = rate
    self._factor = factor

  def __call__(self, step: Any) -> tf.Tensor:
    return (self._rate(step) if callable(self._rate) else self._rate) * self._factor

  def get_config(self) -> dict[str, Any]:
    return {"rate": self._rate, "factor": float(self._factor)}


def _variables_and_schedule(inner: Any) -> tuple[dict[str, tf.Variable], Any]:
  """Returns the numbers that are variables, by name, and the schedule of the learning rate, or None."""
  if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
    values = {name: getattr(inner, name) for name in sorted(inner._hyper)}  # noqa: SLF001  # There is no public list.
  else:
    values = {_RATE: inner._learning_rate}  # noqa: SLF001  # The public property gives a value, not the schedule.
  variables = {name: value for name, value in values.items() if isinstance(value, tf.Variable)}
  rate = values.get(_RATE)
  return variables, rate if callable(rate) and _RATE not in variables else None
