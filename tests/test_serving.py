"""Names of tensors, and the function that a model is served by."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.serving import input_spec, named, serving_function

Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
  ("structure", "names"),
  [
    (1, {"inputs": 1}),
    ({"image": 1, "size": 2}, {"image": 1, "size": 2}),
    ((1, 2), {"inputs_0": 1, "inputs_1": 2}),
    (Point(1, 2), {"x": 1, "y": 2}),
    ({"a": {"b": 1, "c/d": 2}, "e": [3]}, {"a_b": 1, "a_c_d": 2, "e_0": 3}),
    ({"a": 1, "b": None}, {"a": 1}),
  ],
)
def test_a_leaf_is_named_by_its_keys_and_places(structure, names):
  assert named(structure, "inputs") == names


def test_two_leaves_of_one_name_are_refused():
  with pytest.raises(ValueError, match="two tensors would have the name 'a_b'"):
    named({"a": {"b": 1}, "a/b": 2}, "inputs")


def test_a_serving_function_takes_any_batch_size_and_gives_named_outputs():
  spec = {"left": tf.TensorSpec([None, 2], tf.float32), "right": (tf.TensorSpec([None], tf.int32),)}
  serve = serving_function(lambda x: {"sum": x["left"] + 1.0, "more": [x["right"][0] * 2]}, spec)
  concrete = serve.get_concrete_function()
  for size in (1, 3):
    outputs = concrete(left=tf.zeros([size, 2]), right_0=tf.ones([size], tf.int32))
    assert {name: tensor.numpy().tolist() for name, tensor in outputs.items()} == {
      "sum": [[1.0, 1.0]] * size,
      "more_0": [2] * size,
    }


def test_a_functional_model_says_what_it_takes_with_a_free_batch():
  inputs = {"a": tf_keras.layers.Input((3,), batch_size=4), "b": tf_keras.layers.Input((2,), dtype="int32")}
  model = tf_keras.Model(inputs, inputs["a"])
  spec = input_spec(model)
  assert {name: (leaf.shape.as_list(), leaf.dtype) for name, leaf in spec.items()} == {
    "a": ([None, 3], tf.float32),
    "b": ([None, 2], tf.int32),
  }


class Subclassed(tf_keras.Model):
  def call(self, x, training=False):
    return x * 2.0


def test_a_subclassed_model_says_it_once_it_was_called():
  model = Subclassed()
  with pytest.raises(ValueError, match=r"Subclassed does not say what it takes. Call it once in build_model\(\)"):
    input_spec(model)
  model(np.zeros([5, 3], np.float32))
  assert input_spec(model).shape.as_list() == [None, 3]


def test_a_module_that_is_no_keras_model_needs_signatures_of_its_own():
  with pytest.raises(ValueError, match="override serving_signatures"):
    input_spec(tf.Module())
