"""Model Garden's export modules serve our tasks as they are."""

import numpy as np
import pytest
import tensorflow as tf
from official.core import export_base

from official_trainer.config.loading import load
from official_trainer.runner import resolve_task_class
from tests import tiny
from tests.export.models import FEATURES


class Probabilities(export_base.ExportModule):
  """Serves a task through its own methods."""

  def serve(self, features):
    return {"probabilities": self.postprocessor(self.inference_step(features))}

  def get_inference_signatures(self, function_keys):
    [key] = function_keys.values()
    shape = self.model.input_shape
    return {key: tf.function(self.serve).get_concrete_function(tf.TensorSpec(shape, tf.float32, name="features"))}


class Task(tiny.TinyTask):
  def postprocess(self, model_outputs):
    return tf.nn.softmax(model_outputs)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run")
  built = tiny.build(folder, mode="train", train_steps=2, task_class=Task)
  built.run()
  return folder, built.trainer


@pytest.mark.parametrize("checkpoint", ["ckpt-2", ""])
def test_an_export_module_serves_a_checkpoint_of_ours(run, tmp_path, checkpoint):
  folder, trainer = run
  task = Task(tiny.TinyConfig())
  module = Probabilities(
    params=None, model=task.build_model(), inference_step=task.inference_step, postprocessor=task.postprocess
  )
  path = export_base.export(module, ["serve"], str(tmp_path), str(folder / checkpoint), timestamped=False)
  serve = tf.saved_model.load(path).signatures["serving_default"]
  found = serve(features=tf.constant(FEATURES))["probabilities"].numpy()
  expected = task.postprocess(task.inference_step(tf.constant(FEATURES), trainer.model)).numpy()
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert found.sum(axis=-1) == pytest.approx(np.ones(40))


def test_an_export_module_serves_the_digits(tmp_path):
  config = load(experiment="digits/cnn").config.task
  task = resolve_task_class(config.task_class)(config)
  model = task.build_model()
  module = Probabilities(params=config, model=model, inference_step=task.inference_step, postprocessor=task.postprocess)
  path = export_base.export(module, {"serve": "serving_default"}, str(tmp_path), timestamped=False)
  images = np.random.default_rng(0).uniform(size=(3, 8, 8, 1)).astype(np.float32)
  found = tf.saved_model.load(path).signatures["serving_default"](features=tf.constant(images))["probabilities"]
  np.testing.assert_allclose(found, task.postprocess(model(images, training=False)), rtol=1e-5)
