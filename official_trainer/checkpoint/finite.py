"""Finding values that must not reach a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class FiniteCheck:
  """Looks through variables for NaN and infinity, in one compiled call."""

  def __init__(self, variables: Sequence[tf.Variable]):
    """Stores the floating-point variables to look at; traces on first use."""
    self._variables = list(variables)
    self._flags = tf.function(self._all_finite)

  def non_finite_names(self) -> list[str]:
    """Returns the names of the variables that hold a NaN or an infinity, in order."""
    if not self._variables:
      return []
    flags = self._flags().numpy()
    return [v.name.split(":")[0] for v, finite in zip(self._variables, flags, strict=True) if not finite]

  def _all_finite(self) -> tf.Tensor:
    return tf.stack([tf.reduce_all(tf.math.is_finite(v.read_value())) for v in self._variables])
