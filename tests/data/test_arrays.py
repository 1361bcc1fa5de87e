import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import arrays
from official_trainer.data.arrays import ArraySource
from official_trainer.data.source import RandomAccessSource

SEEDS = np.zeros([3, 2], np.int32)


def test_examples_are_the_rows_of_the_arrays():
  x, y = np.random.default_rng(0).normal(size=[7, 2, 3]), np.arange(7, dtype=np.int32)
  source = ArraySource({"x": x, "y": y})
  batch = source.read(tf.constant([6, 0, 6], tf.int64), SEEDS)
  np.testing.assert_array_equal(batch["x"], x[[6, 0, 6]])
  np.testing.assert_array_equal(batch["y"], y[[6, 0, 6]])
  assert len(source) == 7
  assert source.element_spec == {
    "x": tf.TensorSpec([None, 2, 3], tf.float64),
    "y": tf.TensorSpec([None], tf.int32),
  }


def test_a_graph_that_reads_holds_no_copy_of_the_arrays():
  source = ArraySource(np.zeros([1000, 1000], np.float32))
  traced = tf.function(source.read).get_concrete_function(
    tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.int32)
  )
  assert traced.graph.as_graph_def().ByteSize() < 10_000
  assert traced(tf.constant([3], tf.int64), tf.zeros([1, 2], tf.int32)).shape == [1, 1000]


@pytest.mark.parametrize(
  ("structure", "text"),
  [
    ((), "at least one array"),
    ((np.zeros(3), np.zeros(4)), r"same length, got shapes \[3\], \[4\]"),
    (np.float32(1), "got the scalar"),
  ],
)
def test_arrays_that_are_no_examples_are_refused(structure, text):
  with pytest.raises(ValueError, match=text):
    ArraySource(structure)


class Squares(RandomAccessSource):
  """Computed examples: numbers, and their squares as text."""

  def __len__(self):
    return 2500

  def read(self, indices, seeds):
    return indices, tf.strings.as_string(indices**2)

  @property
  def element_spec(self):
    return tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)


def test_a_loaded_source_reads_the_same_examples():
  numbers, texts = arrays.load(Squares()).read(tf.constant([0, 2499, 1024], tf.int64), SEEDS)
  np.testing.assert_array_equal(numbers, [0, 2499, 1024])
  np.testing.assert_array_equal(texts, [b"0", b"6245001", b"1048576"])


def test_an_empty_source_loads():
  empty = arrays.load(ArraySource(np.zeros([0, 3], np.uint8)))
  assert len(empty) == 0
  assert empty.element_spec == tf.TensorSpec([None, 3], tf.uint8)


def test_a_data_set_shorter_than_it_says_is_an_error():
  with pytest.raises(ValueError, match="Expected 4 examples, found 3"):
    arrays.collect(tf.data.Dataset.range(3).batch(2), 4)


def test_memory_is_counted_from_the_spec_and_strings_from_a_sample():
  assert arrays.memory_bytes(ArraySource(np.zeros([10, 4], np.float32))) == 160
  texts = ArraySource(np.array([b"ab"] * 5 + [b"abcd"] * 5, dtype=object))
  assert arrays.memory_bytes(texts) == 30


def test_examples_without_a_fixed_shape_have_no_size():
  source = ArraySource(np.zeros([10, 4])).map(lambda x: tf.ensure_shape(x, [None, None]))
  source = source.map(lambda x: tf.boolean_mask(x, tf.range(4) < 2, axis=1))
  assert arrays.memory_bytes(source) == math.inf
