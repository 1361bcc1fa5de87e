"""What a scheduled scalar is at a step: rules of the step alone, and rules of the history.

A rule's value is computed inside the compiled step from the step and a few coefficients. Those of a rule of the history
are computed in Python after each evaluation and put into a variable: nothing is traced anew, and nothing but the
history needs to be saved.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
import tf_keras

from official_trainer.config.named import Named
from official_trainer.errors import ConfigError
from official_trainer.optim.config import (
  ExponentialScheduleConfig,
  LinearScheduleConfig,
  MultiFactorScheduleConfig,
  PlateauScheduleConfig,
  PolynomialScheduleConfig,
  ScheduleConfig,
  StepwiseScheduleConfig,
)
from official_trainer.optim.plateau import plateau_value


class Series(Protocol):
  """The history up to the evaluation before the step (`history.History`)."""

  def series(self, mode: str, metric: str) -> list[tuple[int, float]]:
    """Returns [(step, value)]."""
    ...

  def named_series(self, name: str) -> list[tuple[int, float]]:
    """Returns [(step, value)] of a metric by the name that rules know it by."""
    ...


class Schedule(abc.ABC):
  """A rule. Subclass it, or register a plain function of the history, for one of your own."""

  num_coefficients = 1
  """How many numbers are taken from the history."""

  @abc.abstractmethod
  def coefficients(self, history: Series) -> Sequence[float]:
    """Returns `num_coefficients` numbers: a pure function of the history, since a restart computes them again."""

  def value(self, step: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    """Returns the scalar. Traced.

    Args:
      step: float32 scalar, the number of completed updates before this one.
      coefficients: float32 [num_coefficients].
    """
    del step
    return coefficients[0]


class OfStep(Schedule):
  """A function of the step alone."""

  num_coefficients = 0

  def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]):
    self._function = function

  def coefficients(self, history: Series) -> Sequence[float]:
    return ()

  def value(self, step: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    return self._function(step)


class OfHistory(Schedule):
  """A number that changes at evaluations only."""

  def __init__(self, function: Callable[[Series], float]):
    self._function = function

  def coefficients(self, history: Series) -> Sequence[float]:
    return (float(self._function(history)),)


_NAMED: Named[Any] = Named("schedule")


def register_schedule(name: str) -> Callable[[Any], Any]:
  """Registers a schedule under a name: a subclass of `Schedule`, or a function `f(history, **arguments) -> float`.

  `history.series(mode, metric)` gives [(step, value)]; it ends with the newest evaluation before the step. The
  arguments are those of the config.

  Raises:
    ConfigError: if another schedule has the name already.
  """
  return _NAMED.register(name)


def build_schedule(config: ScheduleConfig, key: str) -> Schedule:
  """Builds the rule of a config.

  Args:
    config: with its durations as numbers of steps.
    key: dotted key of the config, for errors.

  Raises:
    ConfigError: if a schedule of a user's own is not registered, or its arguments do not fit.
  """
  kind, settings = str(config.type), config.get()
  if kind == "custom":
    return _custom(settings.name, settings.arguments, f"{key}.custom")
  builders: Mapping[str, Callable[[Any], Schedule]] = {
    "linear": _line,
    "polynomial": _line,
    "cosine": _cosine,
    "exponential": _exponential,
    "stepwise": _stepwise,
    "multi_factor": _multi_factor,
    "plateau": _plateau,
  }
  return builders[kind](settings)


def _line(config: LinearScheduleConfig | PolynomialScheduleConfig) -> Schedule:
  power = getattr(config, "power", 1.0)
  decay = tf_keras.optimizers.schedules.PolynomialDecay(config.first, config.num_steps, config.last, power)
  return OfStep(functools.partial(_from, decay, config.begin_step))


def _cosine(config: LinearScheduleConfig) -> Schedule:
  decay = tf_keras.optimizers.schedules.CosineDecay(1.0, config.num_steps)

  def value(step: tf.Tensor) -> tf.Tensor:
    return config.last + (config.first - config.last) * decay(step)

  return OfStep(functools.partial(_from, value, config.begin_step))


def _exponential(config: ExponentialScheduleConfig) -> Schedule:
  decay = tf_keras.optimizers.schedules.ExponentialDecay(
    config.first, config.num_steps, config.factor, staircase=config.staircase
  )
  return OfStep(functools.partial(_from, decay, config.begin_step))


def _stepwise(config: StepwiseScheduleConfig) -> Schedule:
  # Keras changes the value after a boundary; ours is that of the new piece at the boundary itself.
  bounds = [float(boundary) - 0.5 for boundary in config.boundaries or ()]
  return OfStep(tf_keras.optimizers.schedules.PiecewiseConstantDecay(bounds, list(config.values or ())))


def _from(function: Callable[[tf.Tensor], tf.Tensor], begin_step: int, step: tf.Tensor) -> tf.Tensor:
  return function(tf.maximum(step - float(begin_step), 0.0))


def _multi_factor(config: MultiFactorScheduleConfig) -> Schedule:
  warmup = float(config.warmup_steps)

  def cosine(step: tf.Tensor) -> tf.Tensor:
    progress = tf.maximum(0.0, (step - warmup) / float(config.steps_per_cycle))
    return tf.maximum(0.0, 0.5 * (1.0 + tf.cos(math.pi * (progress % 1.0))))

  factors: Mapping[str, Callable[[tf.Tensor], Any]] = {
    "constant": lambda step: config.constant,
    "linear_warmup": lambda step: tf.minimum(1.0, step / warmup),
    "rsqrt_decay": lambda step: tf.math.rsqrt(tf.maximum(step, warmup)),
    "rsqrt_normalized_decay": lambda step: math.sqrt(warmup) * tf.math.rsqrt(tf.maximum(step, warmup)),
    "decay_every": lambda step: config.decay_factor ** tf.floor(step / float(config.steps_per_decay)),
    "cosine_decay": cosine,
  }
  names = [name.strip() for name in config.factors.split("*")]

  def value(step: tf.Tensor) -> tf.Tensor:
    product = tf.ones([])
    for name in names:
      product *= factors[name](step)
    return product

  return OfStep(value)


def _plateau(config: PlateauScheduleConfig) -> Schedule:
  def value(history: Series) -> float:
    return plateau_value([value for _, value in history.named_series(config.metric)], config)

  return OfHistory(value)


def _custom(name: str, arguments: Mapping[str, Any], key: str) -> Schedule:
  found = _NAMED.find(name, f"{key}.name")
  if not isinstance(found, type):
    return OfHistory(functools.partial(found, **arguments))
  try:
    return found(**arguments)
  except TypeError as error:
    raise ConfigError.of(f"{key}.arguments", f"do not fit {name!r}: {error}.") from error
