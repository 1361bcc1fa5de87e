"""NaN in the place of a batch's numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official_trainer.data.padding import Batch


def with_nan(inputs: Any, is_due: tf.Tensor, replica: int | None, strategy: tf.distribute.Strategy) -> Any:
  """Returns the inputs of an update with NaN for every floating-point number of a replica's examples, if due. Traced.

  Args:
    inputs: what `Trainer.next_train_inputs` returned: a `Batch` of all replicas, or per-replica values.
    is_due: bool scalar.
    replica: whose examples are hit; None: those of all.
    strategy: whose replicas these are.

  Raises:
    ValueError: if there is no such replica, or no floating-point tensor.
  """
  num_replicas = strategy.num_replicas_in_sync
  if replica is not None and not 0 <= replica < num_replicas:
    raise ValueError(f"nan_at(): there is no replica {replica}; the {num_replicas} are counted from 0.")
  values = inputs.inputs if isinstance(inputs, Batch) else inputs
  tensors = tf.nest.flatten(values, expand_composites=True)
  if not any(_is_float(tensor) for tensor in tensors):
    kinds = ", ".join(sorted({tensor.dtype.name for tensor in tensors if tensor is not None}))
    raise ValueError(
      f"nan_at(): the inputs hold no floating-point tensor (only {kinds}), so no NaN can come in through them. Give the"
      " task a float feature, or train a subclass of it whose `build_losses` returns NaN for examples of your choice."
    )
  if isinstance(inputs, Batch):  # Replica r of R takes the r-th slice of each tensor.
    changed = [_in_slice(tensor, is_due, replica, num_replicas) for tensor in tensors]
    return Batch(tf.nest.pack_sequence_as(values, changed, expand_composites=True), inputs.mask)
  # A per-replica value is flattened to the tensors of its replicas, in their order.
  owners = [owner for leaf in tf.nest.flatten(values) for owner in _owners(strategy, leaf)]
  changed = [
    _poisoned(tensor, is_due) if replica in (None, owner) else tensor
    for tensor, owner in zip(tensors, owners, strict=True)
  ]
  return tf.nest.pack_sequence_as(values, changed, expand_composites=True)


def _owners(strategy: tf.distribute.Strategy, leaf: Any) -> list[int]:
  """Lists the replica of each tensor of a value that may be a per-replica one."""
  values = strategy.experimental_local_results(leaf)
  return [replica for replica, value in enumerate(values) for _ in tf.nest.flatten(value, expand_composites=True)]


def _in_slice(tensor: tf.Tensor | None, is_due: tf.Tensor, replica: int | None, num_replicas: int) -> tf.Tensor | None:
  if replica is None or not _is_float(tensor):
    return _poisoned(tensor, is_due)
  num_rows = tf.shape(tensor)[0]
  owners = tf.range(num_rows) // (num_rows // num_replicas)
  is_hit = tf.reshape(owners == replica, tf.concat([[num_rows], tf.ones([tf.rank(tensor) - 1], tf.int32)], axis=0))
  return _poisoned(tensor, tf.logical_and(is_due, is_hit))


def _poisoned(tensor: tf.Tensor | None, where: tf.Tensor) -> tf.Tensor | None:
  if not _is_float(tensor):
    return tensor
  return tf.ensure_shape(tf.where(where, tf.constant(float("nan"), tensor.dtype), tensor), tensor.shape)


def _is_float(tensor: tf.Tensor | None) -> bool:
  return tensor is not None and tensor.dtype.is_floating
