"""What a checkpoint's index says is in it."""

from __future__ import annotations

import tensorflow as tf

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow adds to the path of a variable."""


def stored_shapes(prefix: str) -> dict[str, list[int]]:
  """Maps the key of every value at `prefix` to its shape.

  Raises:
    tf.errors.OpError: if there is no index, or it cannot be read.
  """
  return dict(reader_of(prefix).get_variable_to_shape_map())


def reader_of(prefix: str) -> tf.train.CheckpointReader:
  """Returns what reads single values at `prefix`, by their keys. Raises as `stored_shapes`."""
  # Not `tf.train.load_checkpoint` and its like, which look for files by pattern, and take the beginning of a name for a
  # folder: they find nothing on some file systems, such as ram://.
  return tf.compat.v1.train.NewCheckpointReader(prefix)
