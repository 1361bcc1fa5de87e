"""Random numbers as a function of (seed, position): hashed, vectorised, without state.

A position is the place of an example in the stream of a run: an int64 that grows over all epochs.
"""

import hashlib

import tensorflow as tf

# SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_REFOLD = 0xD1B54A32D192ED03


def stream_key(seed: int, stream: str) -> int:
  """Returns the 64-bit key of one named use of a run's seed; different uses are unrelated."""
  digest = hashlib.blake2b(f"{int(seed)}/{stream}".encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little")


def position_seeds(key: int, positions: tf.Tensor) -> tf.Tensor:
  """Returns a seed for each position, different for any two positions of one key.

  Args:
    key: from `stream_key`.
    positions: int64 [n].

  Returns:
    int32 [n, 2]: each fit for a `tf.random.stateless_*` call, all for `uniform` and `integers`.
  """
  return tf.bitcast(mixed(key, positions), tf.int32)


def refold(seeds: tf.Tensor) -> tf.Tensor:
  """Returns new seeds, int32 [n, 2], unrelated to those given: one step down a chain of users."""
  return tf.bitcast(mixed(_REFOLD, tf.bitcast(seeds, tf.uint64)), tf.int32)


def uniform(seeds: tf.Tensor, num: int, stream: int = 0) -> tf.Tensor:
  """Draws numbers in [0, 1) for each example.

  Args:
    seeds: int32 [n, 2], as `RandomAccessSource.augment` hands them over.
    num: how many numbers each example gets.
    stream: calls with the same seeds draw the same numbers; give each call a number of its own.

  Returns:
    float32 [n, num].
  """
  # The upper 24 bits are all that a float32 in [0, 1) can hold.
  return tf.cast(_right(_bits(seeds, num, stream), 40), tf.float32) * 2.0**-24


def integers(seeds: tf.Tensor, num: int, limit: int, stream: int = 0) -> tf.Tensor:
  """Draws integers in [0, limit) for each example; arguments as in `uniform`, `limit` below 2**31.

  Returns:
    int32 [n, num].
  """
  scaled = _right(_bits(seeds, num, stream), 32) * tf.constant(limit, tf.uint64)
  return tf.cast(_right(scaled, 32), tf.int32)


def mixed(key: int, values: tf.Tensor) -> tf.Tensor:
  """Hashes integers [...] to uint64 [...], one to one, another way for each key."""
  start = tf.constant((key + _GAMMA) & _MASK, tf.uint64)
  return _finalise(start + tf.cast(values, tf.uint64) * tf.constant(_GAMMA, tf.uint64))


def _finalise(state: tf.Tensor) -> tf.Tensor:
  """Scrambles the bits of uint64 [...], one to one."""
  state = (state ^ _right(state, 30)) * tf.constant(_MULTIPLY_1, tf.uint64)
  state = (state ^ _right(state, 27)) * tf.constant(_MULTIPLY_2, tf.uint64)
  return state ^ _right(state, 31)


def draws(states: tf.Tensor, num: int, start: int = 0) -> tf.Tensor:
  """Returns the outputs `start`, ..., `start` + `num` - 1 of a generator for each state.

  Args:
    states: uint64 [n].
    num: outputs each.
    start: where to begin.

  Returns:
    uint64 [n, num].
  """
  counters = tf.cast(tf.range(start + 1, start + num + 1, dtype=tf.int64), tf.uint64)
  return _finalise(states[:, tf.newaxis] + counters * tf.constant(_GAMMA, tf.uint64))


def _bits(seeds: tf.Tensor, num: int, stream: int) -> tf.Tensor:
  """Returns uint64 [n, num]."""
  return draws(tf.bitcast(seeds, tf.uint64), num, start=stream << 32)


def _right(value: tf.Tensor, bits: int) -> tf.Tensor:
  return tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
