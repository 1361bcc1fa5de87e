"""Replica arithmetic: splitting a global batch, and keeping per-replica statistics equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def split_batch(strategy: tf.distribute.Strategy, batch: Any, num_local: int) -> Any:
  """Gives each of this process's replicas its slice of a batch. Runs in cross-replica context, in or out of a graph.

  Args:
    strategy: the strategy in scope.
    batch: nested structure of tensors [batch, ...]; None leaves pass through. The leading size must divide by
      `num_local`.
    num_local: number of replicas in this process.

  Returns:
    The batch itself for one replica, else a per-replica structure of [batch / num_local, ...].
  """
  if num_local == 1:
    return batch

  def value_of(context: tf.distribute.experimental.ValueContext) -> Any:
    def slice_of(tensor: tf.Tensor | None) -> tf.Tensor | None:
      if tensor is None:
        return None
      size = (tensor.shape[0] or tf.shape(tensor)[0]) // num_local
      start = context.replica_id_in_sync_group % num_local * size
      return tensor[start : start + size]

    return tf.nest.map_structure(slice_of, batch)

  return strategy.experimental_distribute_values_from_function(value_of)


def replica_statistics(variables: Sequence[tf.Variable]) -> list[tf.Variable]:
  """Returns the variables of which each replica keeps its own value, such as the statistics of batch normalisation."""
  return [v for v in variables if v.synchronization == tf.VariableSynchronization.ON_READ and v.dtype.is_floating]


def average_statistics(strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]) -> None:
  """Replaces each replica's value by the mean over replicas. Runs in cross-replica context, in every training step.

  A checkpoint stores the mean. Averaging in every step, and never at saves, makes a restored run continue from the
  values that the uninterrupted run had, whenever it was saved.
  """
  num_replicas = strategy.num_replicas_in_sync
  if num_replicas == 1:
    return
  for variable in variables:
    variable.assign(round_for_exact_mean(variable.read_value(), num_replicas))


def round_for_exact_mean(value: tf.Tensor, num_replicas: int) -> tf.Tensor:
  """Rounds so that the mean of `num_replicas` equal copies is the value itself, bit for bit.

  Copies are added one after the other. Up to two the sum is exact, and of four it is what rounding to even makes of it
  (3x is off by half a unit at most, which the last addition takes back). For any other number every partial sum must be
  exact, which it is when the lowest ceil(log2 R) bits of x's mantissa are zero; those are rounded away (R = 3: float32
  keeps 22 of 24 bits, R = 8: 21).
  """
  if num_replicas in (1, 2, 4) or value.dtype != tf.float32:
    return value
  spare_bits = math.ceil(math.log2(num_replicas))
  bits = tf.bitcast(value, tf.int32)
  rounded = tf.bitwise.bitwise_and(bits + (1 << (spare_bits - 1)), -1 << spare_bits)
  return tf.where(tf.math.is_finite(value), tf.bitcast(rounded, tf.float32), value)
