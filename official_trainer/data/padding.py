"""Batches of one size: what is missing is padded, and a mask says so (foundation F5)."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from official_trainer.data.source import Structure


class Batch(NamedTuple):
  """One global batch.

  Attributes:
    inputs: what the task's steps take; nested structure of tensors [batch, ...].
    mask: float32 [batch], 1 for an example and 0 for padding; None when every batch of the data set
      is full.
  """

  inputs: Any
  mask: tf.Tensor | None


def padded_size(batch_size: int, multiple: int) -> int:
  """Returns the smallest multiple of `multiple`, the number of replicas, that holds a batch."""
  if batch_size < 1 or multiple < 1:
    raise ValueError(
      "The batch size and the number of replicas must be at least 1, got batch size "
      f"{batch_size} and {multiple} replicas."
    )
  return -(-batch_size // multiple) * multiple


def pad_batches(dataset: tf.data.Dataset, *, batch_size: int, multiple: int) -> tf.data.Dataset:
  """Pads every batch of a data set to one size that divides by the number of replicas.

  Padding repeats the batch's last row, so that it is valid input for any model. Dimensions other
  than the first stay as they are, known or not.

  Args:
    dataset: batches of at most `batch_size` examples; nested structure of dense tensors [n, ...].
    batch_size: the global batch size.
    multiple: the number of replicas.

  Returns:
    A data set of `Batch`. Its mask is None, and nothing is padded or copied, when the element spec
    already says that every batch is full and divides.

  Raises:
    ValueError: the elements are not batches of dense tensors, or known to be larger than
      `batch_size`.
    tf.errors.InvalidArgumentError: while iterating, for a batch that is empty, larger than
      `batch_size`, or whose parts differ in length.
  """
  size = padded_size(batch_size, multiple)
  structure = dataset.element_spec
  rows = [_rows(spec, batch_size) for spec in tf.nest.flatten(structure)]

  def whole(element: tuple) -> Structure:
    # `map` has unpacked a tuple, of any length, into arguments.
    return tf.nest.pack_sequence_as(structure, tf.nest.flatten(element))

  if all(known == size for known in rows):
    return dataset.map(lambda *element: Batch(whole(element), None))
  return dataset.map(
    lambda *element: _padded(whole(element), batch_size, size),
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )


def _rows(spec: tf.TypeSpec, batch_size: int) -> int | None:
  """Returns the static length of one component, None when it is not known."""
  if not isinstance(spec, tf.TensorSpec):
    raise ValueError(
      f"Padding needs dense tensors, got {spec}. Make it dense: `.to_tensor()` for ragged, "
      "`tf.sparse.to_dense` for sparse tensors; `padded_batch` for examples that differ in length."
    )
  if spec.shape.rank == 0:
    raise ValueError(f"Padding needs batches [batch, ...], got {spec}. Call `.batch(...)` on the data set.")
  known = spec.shape[0] if spec.shape.rank is not None else None
  if known is not None and known > batch_size:
    raise ValueError(
      f"The data set gives batches of {known} examples, more than the global batch size "
      f"{batch_size}. Batch it with at most {batch_size}."
    )
  return known


def _padded(inputs: Structure, batch_size: int, size: int) -> Batch:
  flat = tf.nest.flatten(inputs)
  num_examples = tf.shape(flat[0])[0]
  checks = [
    tf.debugging.assert_positive(num_examples, "A batch without examples cannot be padded."),
    tf.debugging.assert_less_equal(
      num_examples,
      batch_size,
      f"A batch holds more examples than the global batch size {batch_size}.",
    ),
  ]
  checks += [
    tf.debugging.assert_equal(
      tf.shape(tensor)[0], num_examples, "The parts of a batch differ in their number of examples."
    )
    for tensor in flat[1:]
  ]
  with tf.control_dependencies(checks):
    rows = tf.range(size)
    mask = tf.cast(rows < num_examples, tf.float32)
    source_rows = tf.minimum(rows, num_examples - 1)

  def pad(tensor: tf.Tensor) -> tf.Tensor:
    # Nearly all batches are full: they are passed on, not copied.
    padded = tf.cond(num_examples < size, lambda: tf.gather(tensor, source_rows), lambda: tensor)
    padded.set_shape(tf.TensorShape([size]).concatenate(tensor.shape[1:]) if tensor.shape.rank else None)
    return padded

  return Batch(tf.nest.map_structure(pad, inputs), mask)
