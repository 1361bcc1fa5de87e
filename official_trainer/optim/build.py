"""Builds the optimizer and its learning rate from the config, with the library's factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.config import foreign, steps
from official_trainer.errors import ConfigError
from official_trainer.optim.config import OptimizationConfig

_NOT_PUBLISHED = ("slide", "adafactor")
# The factory's plain names mean tf-keras's legacy classes or accept arguments that the new classes refuse.
_NEW_NAMES = {"sgd": "sgd_experimental", "adam": "adam_experimental"}


def build_optimizer(config: Any, runtime: Any = None) -> tf_keras.optimizers.Optimizer:
  """Builds an optimizer; averaging is not part of it (see `optim.ema`).

  Args:
    config: an OptimizationConfig, or a foreign config with the same attributes.
    runtime: a RuntimeConfig or None; float16 wraps the optimizer for loss scaling.

  Returns:
    An optimizer without slots; `updates.NoUpdates.build_slots` makes them.
  """
  from official.modeling import (
    optimization,  # noqa: PLC0415  # A slow import that configs must not pay.
    performance,  # noqa: PLC0415
  )

  own = foreign.read(OptimizationConfig, config)
  steps.require_steps(own, "trainer.optimizer_config")
  _require_available(own)
  factory = optimization.OptimizerFactory(optimization.OptimizationConfig(_factory_params(own)))
  optimizer = factory.build_optimizer(factory.build_learning_rate(), use_legacy_optimizer=own.legacy)
  if runtime is not None and runtime.mixed_precision_dtype in ("float16", "mixed_float16"):
    optimizer = performance.configure_optimizer(optimizer, use_float16=True, loss_scale=runtime.loss_scale)
  return optimizer


def applied_learning_rate(optimizer: Any, global_step: tf.Variable) -> Any:
  """Returns the learning rate of the last update as a scalar, whether it is a value or a schedule."""
  rate = optimizer.learning_rate
  before = tf.maximum(tf.convert_to_tensor(getattr(optimizer, "iterations", global_step)) - 1, 0)
  rate = rate(before) if callable(rate) else tf.convert_to_tensor(rate)
  # The legacy API's `decay` is applied beside the learning rate, inverse in time.
  decay = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_initial_decay", 0.0)
  return rate / (1.0 + decay * tf.cast(before, rate.dtype)) if decay else rate


def _require_available(config: OptimizationConfig) -> None:
  kind = config.optimizer.type
  path = "trainer.optimizer_config"
  if kind is None or config.learning_rate.type is None:
    missing = "optimizer" if kind is None else "learning_rate"
    raise ConfigError.of(f"{path}.{missing}.type", "must be set for training; see the fields of this section.")
  if kind in _NOT_PUBLISHED:
    raise ConfigError.of(
      f"{path}.optimizer.type",
      f"{kind!r} cannot be built: Model Garden published its settings, not the optimizer. Take another, or override"
      " the task's create_optimizer().",
    )
  if not config.legacy and kind == "sgd" and config.optimizer.sgd.decay:
    raise ConfigError.of(
      f"{path}.optimizer.sgd.decay", "exists with `legacy: true` only; use a learning-rate schedule instead."
    )


def _factory_params(config: OptimizationConfig) -> dict[str, Any]:
  optimizer = _chosen(config.optimizer)
  if not config.legacy and config.optimizer.type in _NEW_NAMES:
    values = {key: value for key, value in optimizer[config.optimizer.type].items() if key != "decay"}
    name = _NEW_NAMES[config.optimizer.type]
    optimizer = {"type": name, name: values}
  return {
    "optimizer": optimizer,
    "learning_rate": _chosen(config.learning_rate),
    "warmup": _chosen(config.warmup),
  }


def _chosen(one_of: Any) -> dict[str, Any]:
  if one_of.type is None:
    return {"type": None}
  chosen: Mapping[str, Any] = vars(getattr(one_of, one_of.type))
  values = {key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()}
  return {"type": one_of.type, one_of.type: values}
