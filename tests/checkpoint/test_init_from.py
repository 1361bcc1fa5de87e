import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint import resizing
from official_trainer.checkpoint.config import InitConfig
from official_trainer.checkpoint.init_from import planned
from official_trainer.checkpoint.resizing import register_resize
from official_trainer.errors import CheckpointMismatch, ConfigError
from official_trainer.optim.variable_paths import variable_paths
from tests.backbones import BACKBONE, HEAD, build_backbone, classifier, numbered, train_theirs, values

layers = tf_keras.layers


def initialised(model, path, key="task.init", **rules):
  """Initialises a model and returns the report."""
  rules = InitConfig(checkpoint=str(path), **rules)
  with planned(model, variable_paths(model), rules, key, paths_of=variable_paths) as initialisation:
    initialisation.report.require_complete(allow_unused=rules.allow_unused)
    initialisation.apply()
    return initialisation.report


def assert_equal(found, expected):
  assert len(found) == len(expected)
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
  """A checkpoint of Model Garden's own trainer."""
  return train_theirs(tmp_path_factory.mktemp("theirs"))


# ---- What the issue asks for: a classifier's backbone, without the head ---------------------------------------------


def test_the_backbone_of_a_classifier_is_initialised_from_a_keras_file_without_the_head(tmp_path):
  pretrained = numbered(classifier(10))
  pretrained.save_weights(tmp_path / "w.h5")
  model = classifier()
  initial = values(model)
  report = initialised(model, tmp_path / "w.h5", skip=["^head/"])
  assert report.loaded == {name: name for name in BACKBONE}
  assert report.skipped == tuple(HEAD)
  assert (report.missing, report.mismatched, report.unused, report.given, report.resized) == ({}, {}, {}, (), {})
  assert_equal(values(model), values(pretrained)[:8] + initial[8:])


NAME_MAP = [
  [r"^conv_in/", "stem/"],
  [r"^conv_mid/", "block/"],
  [r"^bn/(\w+)$", r"norm/\1"],
]


def test_the_backbone_of_a_classifier_is_initialised_from_a_checkpoint_of_model_garden_with_a_name_map(theirs):
  model = classifier()
  initial = values(model)
  report = initialised(model, theirs, target_prefix="backbone", name_map=NAME_MAP)
  assert report.loaded == {
    "backbone/stem/kernel": "conv_in/kernel",
    "backbone/stem/bias": "conv_in/bias",
    "backbone/norm/gamma": "bn/gamma",
    "backbone/norm/beta": "bn/beta",
    "backbone/norm/moving_mean": "bn/moving_mean",
    "backbone/norm/moving_variance": "bn/moving_variance",
    "backbone/block/kernel": "conv_mid/kernel",
    "backbone/block/bias": "conv_mid/bias",
  }
  assert {name: spec.shape for name, spec in report.unused.items()} == {"logits/kernel": (2, 10), "logits/bias": (10,)}
  assert (report.skipped, report.missing, report.mismatched, report.given) == ((), {}, {}, ())
  reader = tf.train.load_checkpoint(theirs)
  stored = reader.get_tensor("backbone/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE")
  np.testing.assert_array_equal(model.get_layer("backbone").get_layer("stem").kernel.numpy(), stored)
  assert not np.array_equal(stored, np.full((3, 4), 20.0))  # It was trained.
  assert_equal(values(model)[8:], initial[8:])


def test_a_checkpoint_of_model_garden_is_mapped_by_the_places_of_its_objects_as_well(theirs):
  model = classifier()
  report = initialised(
    model,
    theirs,
    source_prefix="backbone",
    target_prefix="backbone",
    name_map=[["layer_with_weights-0", "stem"], ["layer_with_weights-1", "norm"], ["layer_with_weights-2", "block"]],
    allow_unused=False,
  )
  assert list(report.loaded) == BACKBONE
  assert report.loaded["backbone/stem/kernel"] == "backbone/layer_with_weights-0/kernel"


# ---- Every format, whole models and parts ---------------------------------------------------------------------------

WRITERS = {
  "h5": lambda model, folder: (model.save_weights(f"{folder}/w.h5"), f"{folder}/w.h5")[1],
  "weights.h5": lambda model, folder: (model.save_weights(f"{folder}/w.weights.h5"), f"{folder}/w.weights.h5")[1],
  "keras": lambda model, folder: (model.save(f"{folder}/m.keras"), f"{folder}/m.keras")[1],
  "saved model": lambda model, folder: (tf.saved_model.save(model, f"{folder}/m"), f"{folder}/m")[1],
  "checkpoint": lambda model, folder: tf.train.Checkpoint(model=model).write(f"{folder}/ckpt"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_same_model_and_the_backbone_alone_need_no_rules_but_the_prefix(write, tmp_path):
  whole, part = numbered(classifier()), numbered(build_backbone(), start=50.0)
  (tmp_path / "whole").mkdir()
  (tmp_path / "part").mkdir()
  model = classifier()
  report = initialised(model, write(whole, tmp_path / "whole"), allow_unused=False)
  assert list(report.loaded) == BACKBONE + HEAD
  assert_equal(values(model), values(whole))
  report = initialised(model, write(part, tmp_path / "part"), target_prefix="backbone", allow_unused=False)
  assert list(report.loaded) == BACKBONE
  assert_equal(values(model), values(part) + values(whole)[8:])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", ["weights.h5", "checkpoint"])
def test_every_replica_gets_the_values_in_any_precision(kind, policy, tmp_path, logical_cpus):
  pretrained = numbered(classifier())
  path = WRITERS[kind](pretrained, tmp_path)
  strategy = tf.distribute.MirroredStrategy(logical_cpus[:2])
  tf_keras.mixed_precision.set_global_policy(policy)
  try:
    with strategy.scope():
      model = classifier()
      initialised(model, path, allow_unused=False)
  finally:
    tf_keras.mixed_precision.set_global_policy("float32")
  for variable, expected in zip(model.variables, values(pretrained), strict=True):
    for copy in strategy.experimental_local_results(variable):
      np.testing.assert_array_equal(copy.numpy(), expected)


def test_values_are_converted_to_the_type_of_the_variable(tmp_path):
  half = tf_keras.Sequential([layers.Input((2,)), layers.Dense(2, name="dense", dtype="float16")])
  numbered(half).save_weights(tmp_path / "w.h5")
  model = tf_keras.Sequential([layers.Input((2,)), layers.Dense(2, name="dense")])
  initialised(model, tmp_path / "w.h5")
  assert model.layers[-1].kernel.dtype == tf.float32
  assert_equal(values(model), values(half))


# ---- What does not fit ----------------------------------------------------------------------------------------------


def test_nothing_is_assigned_where_something_does_not_fit(tmp_path):
  numbered(classifier(10)).save_weights(tmp_path / "w.h5")
  model = classifier()
  initial = values(model)
  with pytest.raises(CheckpointMismatch) as raised:
    initialised(model, tmp_path / "w.h5")
  assert str(raised.value).splitlines()[1:] == [
    "  shapes differ (2):",
    "    ! head/kernel [2, 2] vs [2, 10]",
    "    ! head/bias [2] vs [10]",
    "Map names with `task.init.name_map`, or add these to `task.init.skip` to keep initial values:",
    "  - '^head/kernel$'",
    "  - '^head/bias$'",
  ]
  assert_equal(values(model), initial)


def test_a_wrong_map_is_an_error_that_names_what_then_lacks_a_value(theirs):
  with pytest.raises(ConfigError, match=r"task.init.name_map.0: '\^conv_inn/' matches no name of the file.*conv_in/"):
    initialised(classifier(), theirs, target_prefix="backbone", name_map=[["^conv_inn/", "stem/"]])
  with pytest.raises(CheckpointMismatch, match=r"- backbone/stem/kernel \[3, 4\]"):
    initialised(classifier(), theirs, target_prefix="backbone", name_map=[["^conv_in/", "block/"], *NAME_MAP[2:]])


# ---- Resizing -------------------------------------------------------------------------------------------------------


class Positions(layers.Layer):
  """A table of positions that is added."""

  def build(self, shape):
    self.table = self.add_weight(name="table", shape=(1, *shape[1:]))

  def call(self, inputs):
    return inputs + self.table


def with_positions(num_positions):
  inputs = layers.Input((num_positions, 2))
  return tf_keras.Model(inputs, Positions(name="positions")(inputs))


@pytest.fixture
def positions(tmp_path, monkeypatch):
  """The path of a table of four positions: 0, 1, 2, 3."""
  monkeypatch.setattr(resizing._NAMED, "_things", dict(resizing._NAMED._things))
  model = with_positions(4)
  model.layers[-1].table.assign(tf.range(4.0)[tf.newaxis, :, tf.newaxis] * tf.ones((1, 4, 2)))
  model.save_weights(tmp_path / "w.h5")
  return tmp_path / "w.h5"


def test_a_value_of_another_shape_is_brought_to_that_of_the_variable(positions):
  model = with_positions(7)
  report = initialised(model, positions, resize=[["positions/", "position_embedding"]])
  assert report.resized == {"positions/table": "position_embedding"}
  assert model.layers[-1].table.numpy()[0, :, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


def test_a_function_of_the_users_own_resizes_too(positions):
  @register_resize("last")
  def last(value, shape):
    return value[:, -shape[1] :]

  model = with_positions(2)
  initialised(model, positions, resize=[["positions/", "last"]])
  assert model.layers[-1].table.numpy()[0, :, 0].tolist() == [2.0, 3.0]


def test_what_cannot_be_resized_is_a_mismatch_that_names_the_function(positions):
  with pytest.raises(CheckpointMismatch) as raised:
    initialised(with_positions(5), positions, resize=[["positions/", "position_embedding_2d"]])
  assert "'position_embedding_2d' cannot bring positions/table [1, 4, 2] to positions/table [1, 5, 2]" in str(
    raised.value
  )
  assert "add '^positions/table$' to `task.init.skip`" in str(raised.value)

  register_resize("nothing")(lambda value, shape: value)
  with pytest.raises(CheckpointMismatch, match=r"'nothing' cannot bring .*: it returned the shape \[1, 4, 2\]"):
    initialised(with_positions(3), positions, resize=[["positions/", "nothing"]])


def test_an_unknown_function_is_refused_also_where_nothing_needs_it(positions):
  with pytest.raises(ConfigError, match="task.init.resize.0: there is no function for another shape 'positions'"):
    initialised(with_positions(4), positions, resize=[["positions/", "positions"]])
