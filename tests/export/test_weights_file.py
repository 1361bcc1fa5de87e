"""A Keras file of weights."""

import os

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.errors import ExportRefused
from official_trainer.export import weights_file
from tests.export import models


@pytest.fixture
def model():
  model = models.Softmax(None).build_model()
  for number, variable in enumerate(model.variables):
    variable.assign(tf.random.stateless_normal(variable.shape, [number, 0]))
  return model


def bits(model):
  return [variable.numpy().tobytes() for variable in model.variables]


def test_load_weights_gives_every_variable_back_to_the_bit(model, tmp_path):
  weights_file.write_weights(str(tmp_path), model)
  other = models.Softmax(None).build_model()
  assert bits(other) != bits(model)
  other.load_weights(tmp_path / "model.weights.h5")
  assert bits(other) == bits(model)


def test_a_compiled_model_is_written_without_its_optimizer_and_keeps_it(model, tmp_path):
  model.compile("adam", "mse")
  model.optimizer.build(model.trainable_variables)
  optimizer = model.optimizer
  weights_file.write_weights(str(tmp_path), model)
  assert model.optimizer is optimizer
  with h5py.File(tmp_path / "model.weights.h5") as file:
    assert not [name for name in file if "optimizer" in name]


def test_a_remote_file_system_gets_a_copy(model):
  folder = "ram://weights-file"
  tf.io.gfile.makedirs(folder)
  weights_file.write_weights(folder, model)
  with tf.io.gfile.GFile(os.path.join(folder, weights_file.FILE), "rb") as file:
    assert file.read(4) == b"\x89HDF"


def test_a_variable_that_keras_leaves_out_is_noticed(tmp_path):
  class Model(tf_keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = tf_keras.layers.Dense(2)
      self.part = tf.Module()
      self.part.scale = tf.Variable(1.0)
      self.dense.build([None, 3])

  model = Model()
  assert len(model.variables) == 3
  with pytest.raises(ExportRefused, match="1 of its arrays are not those of the model's 3 variables"):
    weights_file.write_weights(str(tmp_path), model)


def test_under_a_mirrored_strategy_each_variable_is_written_once(tmp_path, logical_cpus):
  with tf.distribute.MirroredStrategy(logical_cpus[:2]).scope():
    model = models.Softmax(None).build_model()
    weights_file.write_weights(str(tmp_path), model)
  with h5py.File(tmp_path / weights_file.FILE) as file:
    sizes = []
    file.visititems(lambda name, node: sizes.append(node.size) if isinstance(node, h5py.Dataset) else None)
  assert sum(sizes) == sum(np.prod(variable.shape) for variable in model.variables)
