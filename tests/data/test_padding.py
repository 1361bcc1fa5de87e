import collections

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.padding import Batch, pad_batches, padded_size

Pair = collections.namedtuple("Pair", ["first", "second"])


def padded(dataset, batch_size=4, multiple=1):
  return list(pad_batches(dataset, batch_size=batch_size, multiple=multiple))


def test_the_last_batch_is_filled_with_its_last_row_and_masked():
  batches = padded(tf.data.Dataset.range(6).batch(4), multiple=3)
  assert [batch.inputs.numpy().tolist() for batch in batches] == [
    [0, 1, 2, 3, 3, 3],
    [4, 5, 5, 5, 5, 5],
  ]
  assert [batch.mask.numpy().tolist() for batch in batches] == [
    [1, 1, 1, 1, 0, 0],
    [1, 1, 0, 0, 0, 0],
  ]


def test_a_data_set_known_to_be_full_is_passed_on_without_a_mask():
  dataset = pad_batches(tf.data.Dataset.range(6).batch(2, drop_remainder=True), batch_size=2, multiple=2)
  assert [batch.mask for batch in dataset] == [None] * 3
  assert isinstance(dataset.element_spec, Batch)


def test_full_batches_whose_size_is_not_known_have_a_mask_of_ones():
  batches = padded(tf.data.Dataset.range(8).batch(4), multiple=2)
  assert [batch.mask.numpy().tolist() for batch in batches] == [[1] * 4] * 2


@pytest.mark.parametrize(
  "structure",
  [
    lambda x: x,
    lambda x: (x,),
    lambda x: (x, {"a": x, "b": (x, x)}),
    lambda x: {"only": x},
    lambda x: Pair(x, {"b": x}),
  ],
)
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_any_nested_structure_is_kept(structure, drop_remainder):
  dataset = tf.data.Dataset.range(5).map(structure).batch(4, drop_remainder=drop_remainder)
  padded_set = pad_batches(dataset, batch_size=4, multiple=1)
  expected = structure(tf.TensorSpec([4], tf.int64))
  tf.nest.assert_same_structure(padded_set.element_spec.inputs, expected)
  assert padded_set.element_spec.inputs == expected
  for batch in padded_set:
    tf.nest.assert_same_structure(batch.inputs, expected)


def test_dimensions_inside_an_example_stay_as_they_are():
  lengths = tf.data.Dataset.range(1, 6).map(lambda n: (tf.fill([n], n), tf.zeros([2, 3])))
  dataset = pad_batches(lengths.padded_batch(2), batch_size=2, multiple=1)
  assert dataset.element_spec.inputs == (
    tf.TensorSpec([2, None], tf.int64),
    tf.TensorSpec([2, 2, 3], tf.float32),
  )
  assert [batch.inputs[0].shape.as_list() for batch in dataset] == [[2, 2], [2, 4], [2, 5]]


def test_strings_and_floats_are_padded_too():
  dataset = tf.data.Dataset.from_tensor_slices((["a", "b", "c"], [1.0, np.nan, np.inf])).batch(2)
  last = padded(dataset, batch_size=2)[-1].inputs
  np.testing.assert_array_equal(last[0], [b"c", b"c"])
  np.testing.assert_array_equal(last[1], [np.inf, np.inf])


def test_ragged_and_sparse_tensors_are_refused_with_the_remedy():
  ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
  with pytest.raises(ValueError, match=r"dense tensors, got RaggedTensorSpec.*to_tensor\(\)"):
    padded(ragged)
  sparse = tf.data.Dataset.from_tensors(tf.sparse.eye(2))
  with pytest.raises(ValueError, match=r"got SparseTensorSpec.*sparse\.to_dense"):
    padded(sparse)


def test_a_data_set_without_batches_is_refused():
  with pytest.raises(ValueError, match=r"Call `\.batch\(\.\.\.\)`"):
    padded(tf.data.Dataset.range(3))


def test_batches_larger_than_the_batch_size_are_refused():
  with pytest.raises(ValueError, match="batches of 3 examples, more than the global batch size 2"):
    padded(tf.data.Dataset.range(3).batch(3, drop_remainder=True), batch_size=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match="more examples than the global batch size 2"):
    padded(tf.data.Dataset.range(3).batch(3), batch_size=2)


def test_an_empty_batch_is_refused():
  empty = tf.data.Dataset.range(2).batch(2).map(lambda x: tf.boolean_mask(x, x > 5))
  with pytest.raises(tf.errors.InvalidArgumentError, match="without examples"):
    padded(empty)


def test_parts_of_different_lengths_are_refused():
  uneven = tf.data.Dataset.range(2).batch(2).map(lambda x: (x, x[:1]))
  with pytest.raises(tf.errors.InvalidArgumentError, match="differ in their number of examples"):
    padded(uneven)


def test_the_padded_size_is_the_next_multiple():
  assert [padded_size(n, 4) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
  with pytest.raises(ValueError, match="at least 1, got batch size 0 and 2 replicas"):
    padded_size(0, 2)
