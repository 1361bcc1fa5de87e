"""A source whose examples are in memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.data.source import RandomAccessSource, Structure

_ROWS_A_READ = 1024
_SAMPLE = 64


class ArraySource(RandomAccessSource):
  """Examples that are the rows of equally long arrays."""

  def __init__(self, arrays: Structure):
    """Copies the arrays into tensors on the host.

    Args:
      arrays: nested structure of NumPy arrays [num_examples, ...], all of the same length.

    Raises:
      ValueError: there is no array, one has no rows to index, or their lengths differ.
    """
    flat = [np.asarray(array) for array in tf.nest.flatten(arrays)]
    if not flat:
      raise ValueError(f"ArraySource needs at least one array, got {arrays!r}.")
    for array in flat:
      if array.ndim == 0:
        raise ValueError(f"ArraySource needs arrays [num_examples, ...], got the scalar {array!r}.")
    if len({len(array) for array in flat}) > 1:
      shapes = ", ".join(str(list(array.shape)) for array in flat)
      raise ValueError(
        f"ArraySource needs arrays of the same length, got shapes {shapes}. The first dimension counts the examples."
      )
    self._num_examples = len(flat[0])
    # Outside of any graph, so that a dataset captures them by reference: constants of its graph are
    # written into the GraphDef, which is slow and ends at 2 GB. On the host, where tf.data reads.
    with tf.init_scope(), tf.device("/CPU:0"):
      self._tensors = tf.nest.pack_sequence_as(arrays, [tf.constant(array) for array in flat])

  def __len__(self) -> int:
    return self._num_examples

  def read(self, indices: tf.Tensor, seeds: tf.Tensor) -> Structure:
    del seeds
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)

  def tensors(self) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(self._tensors))

  def reading(self, tensors: Any) -> ArraySource:
    copy = object.__new__(ArraySource)
    copy._num_examples = self._num_examples
    copy._tensors = tf.nest.pack_sequence_as(self._tensors, list(tensors))
    return copy

  @functools.cached_property
  def element_spec(self) -> Structure:
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), self._tensors)


def memory_bytes(source: RandomAccessSource) -> float:
  """Estimates what the whole source takes in memory; infinite if its examples have no fixed shape.

  Strings have no size in a spec: some, evenly spread over the source, are read.
  """
  specs = tf.nest.flatten(source.element_spec)
  if not all(spec.shape[1:].is_fully_defined() for spec in specs):
    return math.inf
  total = sum(spec.shape[1:].num_elements() * spec.dtype.size for spec in specs if spec.dtype != tf.string)
  if any(spec.dtype == tf.string for spec in specs) and len(source):
    rows = np.unique(np.linspace(0, len(source) - 1, _SAMPLE).astype(np.int64))
    sample = tf.nest.flatten(source.read(tf.constant(rows), tf.zeros([len(rows), 2], tf.int32)))
    strings = [tensor for tensor in sample if tensor.dtype == tf.string]
    lengths = sum(int(tf.reduce_sum(tf.strings.length(tensor))) for tensor in strings)
    total += lengths / len(rows)
  return float(total) * len(source)


def load(source: RandomAccessSource) -> ArraySource:
  """Reads a whole source, whose examples have fixed shapes, into memory."""
  size = len(source)

  def read(start: tf.Tensor) -> Structure:
    indices = tf.range(start, tf.minimum(start + _ROWS_A_READ, size))
    return source.read(indices, tf.zeros([tf.size(indices), 2], tf.int32))

  batches = tf.data.Dataset.range(0, size, _ROWS_A_READ).map(
    read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )
  return collect(batches.prefetch(1), size)


def collect(batches: tf.data.Dataset, size: int) -> ArraySource:
  """Reads batches of any length, `size` examples of fixed shapes in all, into memory."""
  spec = batches.element_spec
  # Strings are objects in NumPy.
  arrays = [np.empty([size, *s.shape[1:]], s.dtype.as_numpy_dtype) for s in tf.nest.flatten(spec)]
  start = 0
  for batch in batches.as_numpy_iterator():
    parts = tf.nest.flatten(batch)
    for array, part in zip(arrays, parts, strict=True):
      array[start : start + len(part)] = part
    start += len(parts[0])
  if start != size:
    raise ValueError(f"Expected {size} examples, found {start}: the data set on disk is damaged.")
  return ArraySource(tf.nest.pack_sequence_as(spec, arrays))
