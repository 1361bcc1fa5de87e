"""The names that each kind of file gives to its values, and that reading gives the values."""

import re

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.manifest import BrokenCheckpoint, describe, manifest_path
from official_trainer.checkpoint.weight_source import locate_source, open_source
from official_trainer.errors import ConfigError
from official_trainer.optim.variable_paths import variable_paths

layers = tf_keras.layers


def branch(name):
  inputs = layers.Input((2,))
  return tf_keras.Model(inputs, layers.Dense(2, name="dense")(inputs), name=name)


def twins():
  """Two nested models whose layers have the same names."""
  inputs = layers.Input((2,))
  joined = layers.Concatenate(name="joined")([branch("left")(inputs), branch("right")(inputs)])
  return numbered(tf_keras.Model(inputs, layers.BatchNormalization(name="norm")(joined)))


class Subclassed(tf_keras.Model):
  """Its layers' weights have the model's name before theirs."""

  def __init__(self):
    super().__init__(name="outer")
    self.first = layers.Dense(3, name="last")
    self.inner = branch("inner")
    self.scale = self.add_weight(name="scale", shape=())

  def call(self, inputs):
    return self.first(self.inner(inputs)) * self.scale


def subclassed():
  model = Subclassed()
  model(tf.zeros((1, 2)))
  return numbered(model)


def numbered(model):
  """Gives every variable other values."""
  for index, variable in enumerate(model.variables):
    variable.assign(tf.fill(variable.shape, float(index + 1)))
  return model


@pytest.fixture(scope="module", params=[twins, subclassed], ids=["nested", "subclassed"])
def model(request):
  return request.param()


SAVED = {
  "h5": lambda model, folder: model.save_weights(f"{folder}/w.h5") or f"{folder}/w.h5",
  "weights.h5": lambda model, folder: model.save_weights(f"{folder}/w.weights.h5") or f"{folder}/w.weights.h5",
  "training checkpoint": lambda model, folder: tf.train.Checkpoint(
    model=model, optimizer=tf_keras.optimizers.Adam(), global_step=tf.Variable(3)
  ).write(f"{folder}/ckpt-3"),
  "weights in TensorFlow's format": lambda model, folder: model.save_weights(f"{folder}/w") or f"{folder}/w",
}


def names_in(path, **arguments):
  """Returns the first name of each value -> the value."""
  arguments = {"guide": None, "guide_paths": {}, "paths_of": variable_paths, **arguments}
  with open_source(str(path), "task.init", **arguments) as source:
    return {value.names[0]: source.read(value) for value in source.values}


def guided_by(model):
  return {"guide": model, "guide_paths": {id(variable): path for path, variable in variable_paths(model)}}


def assert_holds(found, model):
  expected = {path: variable.numpy() for path, variable in variable_paths(model)}
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(found[path], value)


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)
def test_every_value_of_the_same_model_has_the_path_of_its_variable(save, model, tmp_path):
  assert_holds(names_in(save(model, tmp_path), **guided_by(model)), model)


def test_a_file_of_a_whole_functional_model_is_read_like_one_of_its_weights(tmp_path):
  model = twins()
  for name in ("m.h5", "m.keras", "saved_model"):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr("warnings.warn", lambda *args, **kwargs: None)  # tf-keras prefers its newest format.
      model.save(tmp_path / name)
    assert_holds(names_in(tmp_path / name, **guided_by(model)), model)


def test_a_keras_file_has_the_paths_of_its_own_model_and_is_not_replicated(tmp_path):
  model = twins()
  model.save(tmp_path / "m.keras")
  with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
    assert_holds(names_in(tmp_path / "m.keras"), model)


def test_a_checkpoint_of_another_model_has_the_names_that_its_variables_had(tmp_path):
  path = SAVED["training checkpoint"](twins(), tmp_path)
  assert list(names_in(path, **guided_by(subclassed()))) == [
    "norm/gamma",
    "norm/beta",
    "norm/moving_mean",
    "norm/moving_variance",
    "model/layer_with_weights-0/layer_with_weights-0/kernel",  # Two variables have the name dense/kernel.
    "model/layer_with_weights-0/layer_with_weights-0/bias",
    "model/layer_with_weights-1/layer_with_weights-0/kernel",
    "model/layer_with_weights-1/layer_with_weights-0/bias",
  ]


def test_a_value_of_a_checkpoint_can_be_called_by_its_place_as_well(tmp_path):
  path = SAVED["training checkpoint"](subclassed(), tmp_path)
  with open_source(path, "task.init", paths_of=variable_paths) as source:
    assert sorted(value.names for value in source.values) == [
      ("dense/bias", "model/inner/layer_with_weights-0/bias"),
      ("dense/kernel", "model/inner/layer_with_weights-0/kernel"),
      ("outer/last/bias", "model/first/bias"),
      ("outer/last/kernel", "model/first/kernel"),
      ("scale", "model/scale"),
    ]


def test_weights_h5_without_a_model_of_its_layout_knows_places_only(tmp_path):
  path = SAVED["weights.h5"](subclassed(), tmp_path)
  assert "layers/functional/layers/dense/vars/0" in names_in(path)


def test_a_guide_names_only_what_lies_at_its_own_places(tmp_path):
  path = SAVED["weights.h5"](branch("any"), tmp_path)
  inputs = layers.Input((2,))
  other = tf_keras.Sequential([inputs, layers.Dense(2, name="first"), layers.Dense(2, name="second")])
  assert list(names_in(path, **guided_by(other))) == ["first/kernel", "first/bias"]


def test_a_checkpoint_based_on_names_keeps_them(tmp_path):
  prefix = str(tmp_path / "model.ckpt")
  tf.raw_ops.SaveV2(
    prefix=prefix,
    tensor_names=["resnet/conv1/weights", "global_step"],
    shape_and_slices=["", ""],
    tensors=[tf.ones((2, 3)), tf.constant(7, tf.int64)],
  )
  found = names_in(prefix)
  assert found["resnet/conv1/weights"].shape == (2, 3) and found["global_step"] == 7


def test_the_lists_of_a_large_h5_file_are_read_in_parts(tmp_path):
  path = tmp_path / "w.h5"
  with h5py.File(path, "w") as file:
    file.attrs["layer_names0"], file.attrs["layer_names1"] = [b"a"], [b"b"]
    for layer in ("a", "b"):
      group = file.create_group(layer)
      group.attrs["weight_names"] = [f"{layer}/kernel:0".encode()]
      group[f"{layer}/kernel:0"] = np.ones(2)
  assert list(names_in(path)) == ["a/kernel", "b/kernel"]


def test_a_keras_file_is_read_from_any_file_system(tmp_path):
  model = twins()
  model.save_weights(tmp_path / "w.h5")
  tf.io.gfile.copy(str(tmp_path / "w.h5"), "ram://names/w.h5", overwrite=True)
  assert_holds(names_in("ram://names/w.h5"), model)


# ---- What cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("nowhere", "there is nothing at '.*nowhere'. Give a checkpoint"),
    ("", "there is no checkpoint and no SavedModel in the folder"),
    ("notes.txt", "is none of the files that can be read: `.keras`, `.h5`"),
    ("ckpt.index", "named by what its files have in common before `.index`"),
  ],
)
def test_a_path_at_which_there_are_no_weights_is_refused_with_its_key(tmp_path, name, message):
  (tmp_path / "notes.txt").write_text("-")
  (tmp_path / "ckpt.index").write_text("-")
  with pytest.raises(ConfigError, match=f"task.init.checkpoint: .*{message}"):
    locate_source(str(tmp_path / name), "task.init.checkpoint")


@pytest.mark.parametrize("name", ["w.h5", "w.keras"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name):
  (tmp_path / name).write_bytes(b"nothing of the kind")
  with pytest.raises(ConfigError, match=r"task.init.checkpoint: .*cannot be (read as an HDF5 file|built)"):
    names_in(tmp_path / name)


class Unregistered(layers.Dense):
  """A class that Keras does not find again."""


def test_a_keras_file_with_an_unknown_class_says_how_to_register_it(tmp_path):
  inputs = layers.Input((2,))
  tf_keras.Model(inputs, Unregistered(2)(inputs)).save(tmp_path / "m.keras")
  module = Unregistered.__module__
  with pytest.MonkeyPatch.context() as patch:
    patch.delitem(__import__("sys").modules, module)
    with pytest.raises(ConfigError, match="register_keras_serializable"):
      names_in(tmp_path / "m.keras")


def test_a_damaged_checkpoint_of_ours_is_refused(tmp_path):
  prefix = SAVED["training checkpoint"](twins(), tmp_path)
  (tmp_path / "ckpt-3.manifest.json").write_text(describe(prefix, 3, {}), "utf-8")
  assert manifest_path(prefix).endswith("ckpt-3.manifest.json")
  names_in(prefix)
  data = next(tmp_path.glob("ckpt-3.data*"))
  data.write_bytes(data.read_bytes()[:-1])
  with pytest.raises(BrokenCheckpoint, match="the manifest says"):
    names_in(prefix)


# ---- Averages -------------------------------------------------------------------------------------------------------


def averaged(model, folder):
  """Writes weights with averages of 100 more, as this trainer does."""
  averages = [tf.Variable(v + 100.0, name=f"{v.name.partition(':')[0]}/average") for v in model.trainable_variables]
  return tf.train.Checkpoint(model=model, ema=averages).write(f"{folder}/ckpt-1")


def test_averages_stand_in_place_of_the_weights_that_have_one(tmp_path):
  model = subclassed()
  found = names_in(averaged(model, tmp_path), averages=True, **guided_by(model))
  assert found.keys() == {path for path, _ in variable_paths(model)}
  for path, variable in variable_paths(model):
    np.testing.assert_array_equal(found[path], variable.numpy() + 100.0)


def test_without_averages_asking_for_them_is_refused(tmp_path):
  for path in (SAVED["training checkpoint"](subclassed(), tmp_path), SAVED["h5"](subclassed(), tmp_path)):
    with pytest.raises(ConfigError, match=r"task.init.averages: (there are none in|a Keras file holds no)"):
      names_in(path, averages=True)


def test_averages_that_cannot_be_told_apart_are_refused(tmp_path):
  with pytest.raises(ConfigError, match=re.escape("task.init.averages: 'dense/kernel' is the name of 2 variables")):
    names_in(averaged(twins(), tmp_path), averages=True)
