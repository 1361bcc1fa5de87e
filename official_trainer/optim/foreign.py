"""The border to optimizers that average weights themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import tf_keras


class Averaging(NamedTuple):
  """The settings of an averaging wrapper."""

  average_decay: float
  start_step: int
  dynamic_decay: bool
  trainable_weights_only: bool


def without_averaging(optimizer: Any) -> tuple[Any, Averaging | None]:
  """Takes Model Garden's ExponentialMovingAverage off an optimizer.

  Its swap adds and subtracts, which loses bits and spreads NaN; our `Ema` averages outside the optimizer with the same
  settings. Any other optimizer is returned as it is.

  Args:
    optimizer: any optimizer, or None.

  Returns:
    (the wrapped optimizer, the wrapper's settings), or (optimizer, None). Loss scaling around the wrapper is kept.
  """
  if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
    inner, settings = without_averaging(optimizer.inner_optimizer)
    return (optimizer if settings is None else _scaled_like(optimizer, inner)), settings
  if type(optimizer).__name__ != "ExponentialMovingAverage" or not hasattr(optimizer, "shadow_copy"):
    return optimizer, None
  settings = Averaging(
    average_decay=float(optimizer._average_decay),  # noqa: SLF001  # The wrapper has no accessors.
    start_step=int(optimizer._start_step),  # noqa: SLF001
    dynamic_decay=bool(optimizer._dynamic_decay),  # noqa: SLF001
    trainable_weights_only=bool(optimizer._trainable_weights_only),  # noqa: SLF001
  )
  return optimizer._optimizer, settings  # noqa: SLF001


def _scaled_like(optimizer: Any, inner: Any) -> Any:
  """Returns loss scaling as that of `optimizer`, around another optimizer."""
  dynamic = optimizer.dynamic
  return tf_keras.mixed_precision.LossScaleOptimizer(
    inner,
    dynamic=dynamic,
    initial_scale=optimizer.initial_scale,
    dynamic_growth_steps=optimizer.dynamic_growth_steps if dynamic else None,
  )
