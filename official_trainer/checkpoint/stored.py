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
  # Not `tf.train.list_variables`, which looks for files by pattern and finds none on some file systems, such as ram://.
  return dict(tf.compat.v1.train.NewCheckpointReader(prefix).get_variable_to_shape_map())
