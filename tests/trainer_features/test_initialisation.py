"""What a run starts from: its own checkpoint, another one, pretrained weights by name, or initial weights."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.config import InitConfig
from official_trainer.config.experiment import TaskConfig
from official_trainer.config.loading import load
from official_trainer.errors import CheckpointMismatch, ConfigError
from official_trainer.initialisation import initialise
from official_trainer.optim.config import EmaConfig
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from tests import tiny
from tests.backbones import BACKBONE, HEAD, BackboneTask, build_backbone, classifier, numbered, values

EAGER = {"train_tf_function": False, "train_tf_while_loop": False}
"""Settings with which two steps take less time than their compilation."""


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Pretrained weights: of a classifier of ten classes (numbers from 1), and of a backbone (numbers from 50)."""
  folder = tmp_path_factory.mktemp("files")
  numbered(classifier(10)).save_weights(folder / "whole.h5")
  numbered(build_backbone(), start=50.0).save_weights(folder / "backbone.h5")
  return folder


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
  """A run of another seed, of one step."""
  folder = tmp_path_factory.mktemp("other")
  tiny.build(folder, mode="train", task_class=BackboneTask, seed=3, train_steps=1, ema=EmaConfig(), **EAGER).run()
  return folder


def init(files):
  return InitConfig(checkpoint=f"{files}/whole.h5", skip=("^head/",))


def backbone(files):
  return InitConfig(checkpoint=f"{files}/backbone.h5", target_prefix="backbone")


class Begun:
  """A run that begins and does a number of steps, and the initial weights of its model. Checkpoint 0 is its start."""

  def __init__(self, folder, *, steps=0, session=None, task_class=BackboneTask, **task):
    settings = {"train_steps": steps, "ema": EmaConfig(), **EAGER}
    self.built = tiny.build(folder, mode="train", task_class=task_class, task=task, session=session, **settings)
    self.model = self.built.trainer.model
    self.initial = values(self.model)
    self.built.run()
    self.said = self.built.said


def weights_at(folder, step, model):
  """Returns the weights of a checkpoint in the order of the model's variables."""
  tf.train.Checkpoint(model=model).read(f"{folder}/ckpt-{step}").expect_partial()
  return values(model)


def assert_equal(found, expected):
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


# ---- T36 ------------------------------------------------------------------------------------------------------------


def test_t36_a_named_file_must_exist_and_otherwise_the_newest_checkpoint_or_nothing_is_what_a_run_starts_from(
  tmp_path, files
):
  experiment = {"experiment": "digits/mlp", "params_override": f"task.init.checkpoint={tmp_path}/nowhere"}
  with pytest.raises(ConfigError, match=r"task.init.checkpoint: there is nothing at '.*nowhere'"):
    Runner(load(**experiment), mode="train", model_dir=str(tmp_path / "a"), quiet=True).run()
  assert not (tmp_path / "a").exists()  # It ended before anything was built or written.
  fresh = Begun(tmp_path / "b")
  assert "a new run begins: no checkpoint in its folder, no --checkpoint and no task.init" in fresh.said
  # A run that has begun goes on, and does not miss a file that it no longer needs.
  resumed = Begun(tmp_path / "b", init=InitConfig(checkpoint="nowhere"))
  assert "resumed at step 0" in resumed.said


# ---- D33 ------------------------------------------------------------------------------------------------------------


def test_d33_variables_are_initialised_by_name_with_a_report_and_a_wrong_map_is_an_error(tmp_path, files):
  task = {"init": init(files)}
  begun = Begun(tmp_path / "a", **task)
  model = classifier()
  found = weights_at(tmp_path / "a", 0, model)
  assert_equal(found, values(numbered(classifier()))[:8] + begun.initial[8:])
  assert_equal([v.numpy() for v in averages_at(tmp_path / "a", 0, model)], found)
  report = (tmp_path / "a" / "init_report.txt").read_text("utf-8").splitlines()
  assert report[0] == f"task.init: 8 variables initialised from {files}/whole.h5 (2 skipped)"
  assert report[0] in begun.said
  assert report[1:] == [
    "  loaded (8):",
    *(f"    = {name}" for name in BACKBONE),
    "  skipped (2):",
    *(f"    . {name}" for name in HEAD),
  ]
  # Only where nothing was restored: weights and report stay what they are.
  (tmp_path / "a" / "init_report.txt").unlink()
  again = Begun(tmp_path / "a", **task)
  assert "resumed at step 0" in again.said and "task.init" not in again.said
  assert not (tmp_path / "a" / "init_report.txt").exists()

  with pytest.raises(CheckpointMismatch, match=r"! head/kernel \[2, 2\] vs \[2, 10\]"):
    Begun(tmp_path / "b", init=InitConfig(checkpoint=f"{files}/whole.h5"))
  wrong = InitConfig(checkpoint=f"{files}/whole.h5", skip=("^head/",), name_map=(("stem", "stm"),))
  with pytest.raises(CheckpointMismatch, match=r"(?s)- backbone/stem/kernel .*\+ backbone/stem/kernel .*name_map"):
    Begun(tmp_path / "b", init=wrong)
  assert tiny.committed(tmp_path / "b") == []


def averages_at(folder, step, model):
  averages = [tf.Variable(variable) for variable in model.variables]
  tf.train.Checkpoint(ema=averages).read(f"{folder}/ckpt-{step}").expect_partial()
  return averages


def test_d33_the_averages_of_a_run_are_taken_where_they_are_asked_for(other_run):
  model = classifier()
  averages = [average.numpy() for average in averages_at(other_run, 1, model)]
  for wanted, expected in ((True, averages), (False, weights_at(other_run, 1, classifier()))):
    settings = InitConfig(checkpoint=str(other_run), averages=wanted, allow_unused=False)
    initialise(model, TaskConfig(init=settings))
    assert_equal(values(model), expected)
  assert not np.array_equal(averages[0], values(model)[0])


# ---- D34 ------------------------------------------------------------------------------------------------------------


def test_d34_only_the_backbone_differs_from_the_initial_weights(tmp_path, files):
  begun = Begun(tmp_path, init_backbone=backbone(files))
  found = weights_at(tmp_path, 0, classifier())
  assert_equal(found, values(numbered(build_backbone(), start=50.0)) + begun.initial[8:])
  assert f"task.init_backbone: 8 variables initialised from {files}/backbone.h5 with '' -> 'backbone/'" in begun.said


# ---- D35 ------------------------------------------------------------------------------------------------------------


def test_d35_a_run_starts_from_its_checkpoint_else_a_given_one_else_init_else_the_backbone_else_initial_weights(
  tmp_path, files, other_run
):
  both = {"init": init(files), "init_backbone": backbone(files)}
  model = classifier()

  fresh = Begun(tmp_path / "fresh")
  assert_equal(weights_at(tmp_path / "fresh", 0, model), fresh.initial)

  only_backbone = Begun(tmp_path / "backbone", init_backbone=both["init_backbone"])
  assert_equal(weights_at(tmp_path / "backbone", 0, model)[0], np.full((3, 4), 50.0))
  assert only_backbone.said.count("variables initialised from") == 1

  with_both = Begun(tmp_path / "both", **both)
  assert [float(v.reshape(-1)[0]) for v in weights_at(tmp_path / "both", 0, model)[:8]] == [1, 2, 3, 4, 5, 6, 7, 8]
  assert re.search(r"task.init: 8 .*\n.*task.init_backbone: 0 variables .*8 given before", with_both.said)

  given = Begun(tmp_path / "given", steps=1, session={"checkpoint": str(other_run)}, **both)
  assert_equal(weights_at(tmp_path / "given", 1, model), weights_at(other_run, 1, classifier()))
  assert f"started from {other_run} at step 1" in given.said
  assert "task.init is not used: a checkpoint comes before it" in given.said
  assert "task.init_backbone is not used: a checkpoint comes before it" in given.said

  resumed = Begun(tmp_path / "fresh", session={"checkpoint": str(other_run)}, **both)
  assert "resumed at step 0" in resumed.said
  assert "initialised from" not in resumed.said
  assert_equal(values(resumed.model), fresh.initial)


# ---- M15, M21 -------------------------------------------------------------------------------------------------------


def test_m15_items_of_the_model_join_the_checkpoint_and_each_is_loaded_alone(tmp_path):
  begun = Begun(tmp_path, steps=2)
  trained = weights_at(tmp_path, 2, classifier())
  part = build_backbone()
  tf.train.Checkpoint(backbone=part).read(f"{tmp_path}/ckpt-2").expect_partial().assert_existing_objects_matched()
  assert_equal(values(part), trained[:8])
  assert not np.array_equal(trained[0], begun.initial[0])
  # Also as `task.init_checkpoint`, for a model that has the item and another head.
  other = numbered(classifier(10), start=100.0)
  other.checkpoint_items = {"backbone": other.get_layer("backbone")}
  BackboneTask(TaskConfig(init_checkpoint=f"{tmp_path}/ckpt-2")).initialize(other)
  assert_equal(values(other)[:8], trained[:8])
  assert float(values(other)[8][0, 0]) == 108.0


def test_m21_the_tasks_own_initialize_is_called_once_and_not_when_a_checkpoint_was_found(tmp_path, files):
  calls = []

  class Own(BackboneTask):
    def initialize(self, model):
      calls.append(float(model.get_layer("head").bias.numpy()[0]))
      model.get_layer("head").bias.assign([5.0, 5.0])

  Begun(tmp_path, task_class=Own, init=init(files))
  assert calls == [0.0]
  found = weights_at(tmp_path, 0, classifier())
  assert found[9].tolist() == [5.0, 5.0]  # What it does, and then `task.init`.
  assert (found[0] == 1.0).all()
  Begun(tmp_path, task_class=Own, init=init(files))
  assert calls == [0.0]


# ---- Several replicas -----------------------------------------------------------------------------------------------


def test_pretrained_weights_are_the_same_on_every_replica_of_a_run(tmp_path, files, logical_cpus):
  built = tiny.build(
    tmp_path,
    mode="train",
    task_class=BackboneTask,
    task={"init": init(files)},
    strategy=tf.distribute.MirroredStrategy(logical_cpus[:2]),
    train_steps=1,
    **EAGER,
  )
  built.run()
  assert (weights_at(tmp_path, 0, classifier())[5] == 6.0).all()
  kernel = built.trainer.model.get_layer("backbone").get_layer("stem").kernel
  one, two = built.trainer.strategy.experimental_local_results(kernel)
  np.testing.assert_array_equal(one.numpy(), two.numpy())
  assert isinstance(built.trainer.model, tf_keras.Model)
