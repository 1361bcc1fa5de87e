"""An export is loaded again in a process that has TensorFlow and nothing of ours."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.errors import ExportRefused
from official_trainer.export.reloading import reload_in_fresh_process
from official_trainer.export.saved_model import traced, write_saved_model
from tests.export import models


@pytest.mark.slow
def test_every_type_of_input_and_output_passes_to_the_fresh_process_and_back(tmp_path):
  task = models.Words()
  functions = {}
  for dtype in (tf.bfloat16, tf.float64, tf.bool, tf.string):
    spec = tf.TensorSpec([None, 2], dtype, name="x")
    functions[f"same/{dtype.name}"] = tf.function(lambda x: {"y": tf.identity(x)}, input_signature=[spec])
  model = task.build_model()
  functions |= task.serving_signatures(model)
  write_saved_model(str(tmp_path), model, task, functions)
  inputs = {
    "same/bfloat16": {"x": np.array([[1.5, -2.0]], tf.bfloat16.as_numpy_dtype)},
    "same/float64": {"x": np.array([[np.nan, 0.1]])},
    "same/bool": {"x": np.array([[True, False]])},
    "same/string": {"x": np.array([[b"a\0", "ü".encode()]], object)},
    "price": {"word": np.array([b"green"], object)},
    "serving_default": {"inputs": np.array([b"green", b"red"], object)},
  }
  found = reload_in_fresh_process(str(tmp_path), inputs)
  assert found["price"]["price"].tolist() == [25]
  for name, signature in traced(functions).items():
    for output, expected in signature(inputs[name]).items():
      assert found[name][output].dtype == expected.dtype
      assert found[name][output].tolist() == expected.tolist() or found[name][output].tobytes() == expected.tobytes()


@pytest.mark.slow
def test_a_signature_that_needs_this_process_is_refused_with_what_the_fresh_one_said(tmp_path):
  @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
  def through_python(x):
    return {"y": tf.numpy_function(np.sort, [x], tf.float32)}

  task = models.Softmax(None)
  write_saved_model(str(tmp_path), task.build_model(), task, {"sorted": through_python})
  with pytest.raises(ExportRefused, match="(?s)loads it again ended with code 1:.*pyfunc"):
    reload_in_fresh_process(str(tmp_path), {"sorted": {"x": np.array([2.0, 1.0], np.float32)}})
