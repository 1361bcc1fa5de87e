"""On what an export is tried."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.padding import Batch
from official_trainer.export.examples import (
  RANDOM_INPUTS,
  VALIDATION_DATA,
  Examples,
  first_features,
  inputs_of,
  num_rows,
)

FEATURES = np.arange(20, dtype=np.float32).reshape(10, 2)
SPECS = {"x": tf.TensorSpec([None, 2], tf.float32, name="x")}


def batches(size, mask=None):
  dataset = tf.data.Dataset.from_tensor_slices((FEATURES, np.zeros(10, np.int32))).batch(size)
  return dataset if mask is None else dataset.map(lambda *inputs: Batch(inputs, tf.constant(mask)))


def test_the_first_examples_are_taken_over_batches_without_labels():
  np.testing.assert_array_equal(first_features(batches(4), 7), FEATURES[:7])


def test_fewer_examples_than_asked_for_are_all_of_them():
  np.testing.assert_array_equal(first_features(batches(4), 32), FEATURES)


def test_padding_is_left_out():
  np.testing.assert_array_equal(first_features(batches(5, mask=[1.0, 0, 1, 0, 1]), 32), FEATURES[[0, 2, 4, 5, 7, 9]])


def test_features_of_any_structure_keep_it():
  dataset = tf.data.Dataset.from_tensor_slices({"a": FEATURES, "b": (np.arange(10),)}).batch(3)
  found = first_features(dataset, 4)
  assert found["a"].shape == (4, 2)
  assert found["b"][0].tolist() == [0, 1, 2, 3]


def test_data_that_cannot_be_read_are_none_and_said_once():
  said = []

  def broken():
    raise OSError("no such disk")

  examples = Examples(broken, said.append)
  assert examples.features is None
  assert examples.features is None
  assert said == ["the validation data cannot be read, an export is tried on random inputs: no such disk"]


def test_an_empty_set_gives_no_examples():
  said = []
  assert Examples(lambda: batches(4).take(0), said.append).features is None
  assert said[0].endswith("there are no examples")


def test_examples_that_fit_are_used():
  inputs, used = inputs_of(SPECS, {"x": FEATURES, "unused": FEATURES})
  assert used == VALIDATION_DATA
  np.testing.assert_array_equal(inputs["x"], FEATURES)
  assert num_rows(inputs) == 10


def test_a_signature_of_a_fixed_batch_gets_as_many_rows():
  inputs, used = inputs_of({"x": tf.TensorSpec([4, 2], tf.float32)}, {"x": FEATURES})
  assert (used, inputs["x"].shape) == (VALIDATION_DATA, (4, 2))


@pytest.mark.parametrize(
  "given", [None, {}, {"x": FEATURES.astype(np.float64)}, {"x": FEATURES[:, :1]}, {"y": FEATURES}]
)
def test_random_inputs_are_used_where_examples_do_not_fit(given):
  inputs, used = inputs_of(SPECS, given)
  assert used == RANDOM_INPUTS
  assert (inputs["x"].shape, inputs["x"].dtype) == ((32, 2), np.float32)
  np.testing.assert_array_equal(inputs["x"], inputs_of(SPECS, given)[0]["x"])


def test_random_inputs_fill_unknown_sizes():
  specs = {"ids": tf.TensorSpec([None, None, 3], tf.int64), "flag": tf.TensorSpec([], tf.bool)}
  inputs, _ = inputs_of(specs, None)
  assert (inputs["ids"].shape, set(np.unique(inputs["ids"]))) == ((32, 8, 3), {0, 1})
  assert inputs["flag"].dtype == bool


@pytest.mark.parametrize(
  ("spec", "says"), [(tf.TensorSpec([None], tf.string), "of type string"), (tf.TensorSpec(None), "has no shape")]
)
def test_what_has_no_random_values_asks_for_examples(spec, says):
  with pytest.raises(ValueError, match=f"'x' .*{says}.*override Task.serving_examples"):
    inputs_of({"x": spec}, None)
