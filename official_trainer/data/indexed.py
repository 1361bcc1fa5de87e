"""Input as a function of the step (foundation F1).

The stream of a run is the endless sequence of epochs of its source. The batch of step s holds its
positions

    anchor.position + (b - anchor.batch) * global_batch_size + i,     i in [0, global_batch_size)

where b is s, or more by as many batches as were left out before (`data.skipped`). Position // len is
the epoch, and position % len goes through the epoch's permutation to an example. So nothing needs to
be saved, a run starts at any step at once, and the number of replicas does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from official_trainer.data import order
from official_trainer.data import seeds as seeds_lib
from official_trainer.data.anchor import Anchor
from official_trainer.data.padding import Batch, padded_size
from official_trainer.data.share import WHOLE, Share
from official_trainer.data.skipped import NONE_SKIPPED, SkippedBatches
from official_trainer.data.source import RandomAccessSource

_INT64_MAX = 2**63 - 1
# Calling into a map costs more than gathering a small batch: one call makes several, of this many
# bytes together.
_BYTES_A_CALL = 1 << 17
_MOST_BATCHES_A_CALL = 8

Read = Callable[[tf.Tensor, int], list[Batch]]
"""(first, num) -> the batches of number `first`, int64, and of those after it."""


class IndexedInput:
  """The training batches of a source, by step."""

  # For the log, and for `trainer.exact_resume`.
  position = "input position: computed from the step (exact)"
  exact = True

  def __init__(
    self,
    source: RandomAccessSource,
    *,
    global_batch_size: int,
    seed: int,
    shuffle: bool,
    num_epochs: int | None = None,
  ):
    """Stores and checks; reads nothing.

    Args:
      source: the examples.
      global_batch_size: examples a step, over all replicas.
      seed: decides the order of each epoch, and the seeds of augmentation.
      shuffle: whether each epoch has an order of its own; else it is the source's.
      num_epochs: how often the stream goes through the source; None for ever. Batches are always
        full: at the end of the last epoch fewer than `global_batch_size` examples may be left over.

    Raises:
      ValueError: the source is empty, or a number is not positive.
    """
    if not len(source):
      raise ValueError("Training needs at least one example, the source is empty. Check its split.")
    if global_batch_size < 1:
      raise ValueError(f"global_batch_size must be at least 1, got {global_batch_size}.")
    if num_epochs is not None and num_epochs < 1:
      raise ValueError(f"num_epochs must be at least 1, or None for no end, got {num_epochs}.")
    self._source = source
    self._batch_size = global_batch_size
    self._shuffle = shuffle
    self._num_epochs = num_epochs
    self._order_key = seeds_lib.stream_key(seed, "order")
    self._augment_key = seeds_lib.stream_key(seed, "augment")

  @property
  def num_examples(self) -> int:
    """Examples in one epoch."""
    return len(self._source)

  def dataset(
    self,
    start_step: int,
    anchor: Anchor,
    multiple: int = 1,
    skipped: SkippedBatches = NONE_SKIPPED,
    share: Share = WHOLE,
    stride: int = 1,
  ) -> tf.data.Dataset:
    """Returns the batches of steps `start_step`, `start_step` + `stride`, ...

    Args:
      start_step: number of completed updates.
      anchor: from the run's state; `Anchor.start(global_batch_size)` for a fresh run.
      multiple: number of replicas. Batches that do not divide by it are padded, and masked.
      skipped: batches that are left out.
      share: the part of every batch that is made.
      stride: steps from one batch to the next, where several share the work.

    Returns:
      A data set of `Batch`, with a static batch dimension. The mask is None if nothing is padded.

    Raises:
      ValueError: the anchor is of another batch size, or after the batch of `start_step`.
    """
    first_batch = skipped.batch_of(start_step)
    end = _INT64_MAX if self._num_epochs is None else len(self._source) * self._num_epochs
    num_batches = max(0, end - anchor.position_at(first_batch)) // self._batch_size
    num_steps = num_batches - skipped.num_between(first_batch, first_batch + num_batches)
    first_row, end_row = share.rows(padded_size(self._batch_size, multiple))
    read = self.reader(start_step, anchor, multiple, skipped, share, stride)
    return _batches(read, -(-num_steps // stride), _batches_a_call(self._source, end_row - first_row))

  def reader(
    self,
    start_step: int,
    anchor: Anchor,
    multiple: int = 1,
    skipped: SkippedBatches = NONE_SKIPPED,
    share: Share = WHOLE,
    stride: int = 1,
  ) -> Read:
    """Returns what reads the batches of a number of steps, the first of them given as int64 from `start_step` on.

    Arguments and errors as those of `dataset`.
    """
    if anchor.global_batch_size != self._batch_size:
      raise ValueError(
        f"The anchor is of global_batch_size {anchor.global_batch_size}, the input of "
        f"{self._batch_size}. To go on with another size use anchor.moved({start_step}, "
        f"{self._batch_size})."
      )
    first_batch = skipped.batch_of(start_step)
    first = anchor.position_at(first_batch)
    padded = padded_size(self._batch_size, multiple)
    first_row, end_row = share.rows(padded)
    size = end_row - first_row
    mask = _mask(self._batch_size, padded, first_row, end_row)

    def batches(start: tf.Tensor, num: int) -> list[Batch]:
      rows = tf.minimum(tf.range(first_row, end_row, dtype=tf.int64), self._batch_size - 1)
      numbers = (start + tf.range(num, dtype=tf.int64)) * stride
      if skipped.windows:
        numbers = skipped.batches_of(numbers + start_step) - first_batch
      positions = tf.reshape(first + numbers[:, tf.newaxis] * self._batch_size + rows, [num * size])
      indices = tf.split(self._indices(positions), num)
      seeds = tf.split(seeds_lib.position_seeds(self._augment_key, positions), num)
      # Each batch is read by itself, so that it depends on its step and not on its neighbours.
      return [Batch(self._source.read(indices[i], seeds[i]), mask) for i in range(num)]

    return batches

  def _indices(self, positions: tf.Tensor) -> tf.Tensor:
    """Returns the example, int64 [n], at each position of the stream."""
    if self._shuffle:
      return order.shuffled(self._order_key, positions, len(self._source))
    return positions % len(self._source)


def evaluation_dataset(
  source: RandomAccessSource, *, batch_size: int, multiple: int, seed: int, share: Share = WHOLE, first: int = 0
) -> tf.data.Dataset:
  """Returns every example once, in order.

  Which examples share a batch does not depend on `multiple`.

  Args:
    source: the examples; none give an empty data set.
    batch_size: examples a batch, over all replicas.
    multiple: number of replicas.
    seed: for sources that augment their evaluation.
    share: the part of every batch that is made.
    first: number of the batch that comes first; after the last one come those before it.

  Returns:
    A data set of `Batch` with static shapes [padded_batch, ...], padded_batch the smallest multiple
    of `multiple` that holds `batch_size`. The mask is None if nothing is padded.
  """
  read = evaluation_reader(source, batch_size=batch_size, multiple=multiple, seed=seed, share=share)
  num_batches = -(-len(source) // batch_size)
  if not first:
    return _batches(read, num_batches, 1)
  return _batches(lambda start, num: read((start + first) % num_batches, num), num_batches, 1)


def evaluation_reader(
  source: RandomAccessSource, *, batch_size: int, multiple: int, seed: int, share: Share = WHOLE
) -> Read:
  """Returns what reads one batch of an evaluation, by its number. Arguments as those of `evaluation_dataset`."""
  num_examples = len(source)
  size = padded_size(batch_size, multiple)
  key = seeds_lib.stream_key(seed, "evaluation")
  has_padding = size != batch_size or num_examples % batch_size != 0
  first_row, end_row = share.rows(size)

  def batches(start: tf.Tensor, num: int) -> list[Batch]:
    del num  # 1
    first = start * batch_size
    rows = tf.range(first_row, end_row, dtype=tf.int64)
    real = tf.minimum(tf.constant(batch_size, tf.int64), num_examples - first)
    indices = first + tf.minimum(rows, real - 1)
    inputs = source.read(indices, seeds_lib.position_seeds(key, indices))
    return [Batch(inputs, tf.cast(rows < real, tf.float32) if has_padding else None)]

  return batches


def _batches(batches: Read, num_batches: int, batches_a_call: int) -> tf.data.Dataset:
  """Returns a data set of batches.

  Args:
    batches: (start, num) -> `num` batches, the first of them number `start`.
    num_batches: how many there are in all.
    batches_a_call: `num` of each call.
  """
  options = tf.data.Options()
  options.deterministic = True
  if batches_a_call == 1:
    dataset = tf.data.Dataset.range(num_batches).map(
      lambda start: batches(start, 1)[0], num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)

  def stacked(start: tf.Tensor) -> Batch:
    return tf.nest.map_structure(_stacked, *batches(start, batches_a_call))

  calls = tf.data.Dataset.range(0, num_batches, batches_a_call)
  dataset = calls.map(stacked, num_parallel_calls=2, deterministic=True)
  # Batches this small cost less than the autotuner that would watch over them.
  options.autotune.enabled = False
  return dataset.unbatch().take(num_batches).prefetch(batches_a_call).with_options(options)


def _stacked(*tensors: tf.Tensor | None) -> tf.Tensor | None:
  return None if tensors[0] is None else tf.stack(tensors)


def _batches_a_call(source: RandomAccessSource, size: int) -> int:
  """Returns how many batches one call should make: 1 for large ones, and for unknown shapes."""
  num_bytes = 0
  for spec in tf.nest.flatten(source.element_spec):
    if spec.dtype == tf.string or not spec.shape[1:].is_fully_defined():
      return 1
    num_bytes += size * spec.shape[1:].num_elements() * spec.dtype.size
  return max(1, min(_MOST_BATCHES_A_CALL, _BYTES_A_CALL // max(1, num_bytes)))


def _mask(batch_size: int, size: int, first_row: int, end_row: int) -> tf.Tensor | None:
  if batch_size == size:
    return None
  with tf.init_scope(), tf.device("/CPU:0"):
    return tf.cast(tf.range(first_row, end_row) < batch_size, tf.float32)
