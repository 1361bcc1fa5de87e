"""Which part of every global batch a host makes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Share(NamedTuple):
  """The `index`-th of `num` equal parts of each batch: that of one of the hosts that train together.

  Sharing every batch, and not the files or the examples, makes the global batches of a run the same on any number of
  hosts, and lets a single file serve all of them.
  """

  index: int = 0
  num: int = 1

  def rows(self, size: int) -> tuple[int, int]:
    """Returns (first, end) of this part of `size` rows, which divide by `num`."""
    part = size // self.num
    return self.index * part, (self.index + 1) * part

  def of(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns this part of the batches of a data set of `Batch`, whose sizes are static."""
    if self.num == 1:
      return dataset

    def part(tensor: tf.Tensor | None) -> tf.Tensor | None:
      if tensor is None:
        return None
      first, end = self.rows(tensor.shape[0])
      return tensor[first:end]

    return dataset.map(lambda batch: tf.nest.map_structure(part, batch), num_parallel_calls=tf.data.AUTOTUNE)


WHOLE = Share()
