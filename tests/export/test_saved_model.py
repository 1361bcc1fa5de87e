"""What is in a SavedModel, and which signatures can be traced."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.errors import ConfigError
from official_trainer.export.saved_model import traced, write_saved_model
from tests.export import models
from tests.export.reload_here import reload_here


def written(tmp_path, task, model):
  functions = task.serving_signatures(model)
  signatures = traced(functions)
  write_saved_model(str(tmp_path), model, task, functions)
  return signatures, tf.saved_model.load(str(tmp_path))


def test_weights_and_signatures_come_back_and_nothing_of_keras(tmp_path):
  task = models.Softmax(None)
  model = task.build_model()
  signatures, loaded = written(tmp_path, task, model)
  assert [w.numpy().tobytes() for w in loaded.weights] == [v.numpy().tobytes() for v in model.variables]
  found = loaded.signatures["serving_default"](inputs=tf.constant(models.FEATURES))["outputs"].numpy()
  assert found.tobytes() == signatures["serving_default"]({"inputs": models.FEATURES})["outputs"].tobytes()
  np.testing.assert_allclose(found, tf.nn.softmax(model(models.FEATURES, training=False)), rtol=1e-6)
  assert b"keras" not in (tmp_path / "saved_model.pb").read_bytes().replace(b"tf_keras/", b"")


def test_specs_name_inputs_and_outputs_with_a_free_batch():
  task = models.Softmax(None)
  signature = traced(task.serving_signatures(task.build_model()))["serving_default"]
  assert {name: spec.shape.as_list() for name, spec in signature.inputs.items()} == {"inputs": [None, 3]}
  assert {name: spec.shape.as_list() for name, spec in signature.outputs.items()} == {"outputs": [None, 2]}


def test_tables_and_variables_of_model_and_task_are_written_where_they_are_used(tmp_path):
  task = models.Words()
  model = task.build_model()
  signatures, loaded = written(tmp_path, task, model)
  words = np.array([b"red", b"blue", b"pink"], object)
  assert loaded.signatures["price"](word=tf.constant(words))["price"].numpy().tolist() == [15, 35, 4]
  assert signatures["price"]({"word": words})["price"].tolist() == [15, 35, 4]
  embedded = loaded.signatures["serving_default"](inputs=tf.constant(words))["outputs"].numpy()
  assert embedded.tobytes() == model(tf.constant(words)).numpy().tobytes()
  stored = [shape for _, shape in tf.train.list_variables(str(tmp_path / "variables" / "variables"))]
  assert [1000] not in stored


def test_a_mirrored_model_is_written_as_one(tmp_path, logical_cpus):
  with tf.distribute.MirroredStrategy(logical_cpus[:2]).scope():
    task = models.Softmax(None)
    model = task.build_model()
    statistics = [layer for layer in model.layers if isinstance(layer, tf_keras.layers.BatchNormalization)][0]
    statistics.moving_mean.assign([1.0, 2.0, 3.0, 4.0])
    signatures, loaded = written(tmp_path, task, model)
    expected = signatures["serving_default"]({"inputs": models.FEATURES})["outputs"]
  found = reload_here(str(tmp_path), {"serving_default": {"inputs": models.FEATURES}})["serving_default"]["outputs"]
  assert found.tobytes() == expected.tobytes()
  assert len(loaded.weights) == len(model.variables)


def test_a_model_of_mixed_precision_keeps_its_float32_weights(tmp_path):
  tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
  try:
    task = models.Softmax(None)
    model = task.build_model()
    signatures, loaded = written(tmp_path, task, model)
  finally:
    tf_keras.mixed_precision.set_global_policy("float32")
  assert {w.dtype for w in loaded.weights} == {tf.float32}
  found = loaded.signatures["serving_default"](inputs=tf.constant(models.FEATURES))["outputs"]
  assert found.dtype == tf.bfloat16
  assert found.numpy().tobytes() == signatures["serving_default"]({"inputs": models.FEATURES})["outputs"].tobytes()


def test_functions_that_cannot_be_traced_are_named_together():
  @tf.function
  def without_signature(x):
    return x

  @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
  def broken(x):
    raise ValueError("this model has no head")

  with pytest.raises(ConfigError) as error:
    traced({"open": without_signature, "broken": broken, "text": "not a function"})
  assert "serving_signatures()['open']: cannot be traced" in str(error.value)
  assert "this model has no head" in str(error.value)
  assert "serving_signatures()['text']: cannot be traced" in str(error.value)


def test_no_signature_at_all_is_refused():
  with pytest.raises(ConfigError, match="must return at least one function"):
    traced({})


def test_a_concrete_function_is_a_signature_and_outputs_without_names_get_them():
  @tf.function
  def twice(x):
    return x * 2.0, x * 3.0

  concrete = twice.get_concrete_function(tf.TensorSpec([None], tf.float32, name="x"))
  signature = traced({"twice": concrete})["twice"]
  assert list(signature.inputs) == ["x"]
  assert {k: v.tolist() for k, v in signature({"x": np.ones(2, np.float32)}).items()} == {
    "output_0": [2.0, 2.0],
    "output_1": [3.0, 3.0],
  }
