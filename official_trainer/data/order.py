"""The order of an epoch: a permutation computed for just the positions asked for."""

import tensorflow as tf

from official_trainer.data import seeds as seeds_lib

# The cipher behind the op permutes at least 2**16 values, and is repeated until its result is in
# range: 20 us an index for 100 examples. Up to about this size, sorting hashed keys is quicker.
_LARGEST_SORTED = 2048

# The op's default of 4 rounds leaves neighbouring epochs of 60,000 examples in nearly one order
# (correlation 0.86), and 8 are visibly too few for 10**9 examples.
_ROUNDS = 16


def shuffled(key: int, positions: tf.Tensor, size: int) -> tf.Tensor:
  """Returns the example at each position of an endless stream of shuffled epochs.

  Args:
    key: from `seeds.stream_key`; decides all the orders.
    positions: int64 [n], not descending. Position p is number p % size of epoch p // size.
    size: number of examples.

  Returns:
    int64 [n]. Over the positions of one epoch it takes every value in [0, size) once.
  """
  if size <= _LARGEST_SORTED:
    return _by_sorting(key, positions, size)
  return _by_cipher(key, positions, size)


def _by_sorting(key: int, positions: tf.Tensor, size: int) -> tf.Tensor:
  first_epoch = positions[0] // size
  epochs = tf.range(first_epoch, positions[-1] // size + 1)
  # Any order of the keys is a permutation, also should two of them be equal.
  keys = tf.bitcast(seeds_lib.draws(seeds_lib.mixed(key, epochs), size), tf.int64)
  orders = tf.reshape(tf.math.top_k(keys, k=size).indices, [-1])
  return tf.cast(tf.gather(orders, positions - first_epoch * size), tf.int64)


def _by_cipher(key: int, positions: tf.Tensor, size: int) -> tf.Tensor:
  # The op takes the lower 32 bits of three seed words, and similar words give similar orders: all
  # three are a hash of the epoch.
  states = seeds_lib.mixed(key, positions // size)
  words = tf.bitwise.right_shift(seeds_lib.draws(states, 3), tf.constant(32, tf.uint64))
  return tf.raw_ops.RandomIndexShuffle(
    index=positions % size,
    seed=tf.cast(words, tf.int64),
    max_index=tf.constant(size - 1, tf.int64),
    rounds=_ROUNDS,
  )
