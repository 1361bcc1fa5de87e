"""Models that tensorflow-model-optimization prunes, in whole runs."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras

from official_trainer.export.config import ExportConfig
from official_trainer.optim.config import EmaConfig
from official_trainer.optim.pruning import NoPruning, build_pruning
from official_trainer.run import export as export_module
from official_trainer.run import session as session_module
from tests import tiny
from tests.export.reload_here import reload_here


class Pruned(tiny.TinyTask):
  """Half of the weights of both layers are pruned by step 10."""

  def build_model(self):
    schedule = tfmot.sparsity.keras.PolynomialDecay(0.0, 0.5, begin_step=2, end_step=10, frequency=2)
    layers = [tf_keras.layers.Dense(8, input_shape=(3,)), tf_keras.layers.Dense(2)]
    prune = tfmot.sparsity.keras.prune_low_magnitude
    return tf_keras.Sequential([prune(layer, pruning_schedule=schedule) for layer in layers])


SETTINGS = {
  "task_class": Pruned,
  "train_steps": 13,
  "steps_per_loop": 4,
  "checkpoint_interval": 3,
  "validation_interval": 6,
  "ema": EmaConfig(average_decay=0.9),
}


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    return folder, tiny.build(folder, **SETTINGS).run()


def test_a_model_without_wrappers_needs_nothing():
  assert isinstance(build_pruning(tiny.TinyTask(tiny.TinyConfig()).build_model()), NoPruning)


def test_a_pruned_model_ends_as_sparse_as_its_schedule_says_and_reports_it(whole):
  folder, result = whole
  kernels = [variable.numpy() for variable in result.model.trainable_variables if "kernel" in variable.name]
  assert [np.mean(kernel == 0) for kernel in kernels] == [0.5, 0.5]
  rows = [json.loads(line) for line in (folder / "history.jsonl").read_text("utf-8").splitlines()]
  assert [row["metrics"]["sparsity"] for row in rows if row["mode"] == "train"] == [0.3, 0.5, 0.5, 0.5]


def test_a_pruned_run_that_was_killed_between_two_reports_ends_with_the_same_bits(whole, tmp_path):
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, session=tiny.interrupted_by(3), **SETTINGS).run()
  tiny.build(tmp_path, **SETTINGS).run()
  tiny.assert_same_contents(tmp_path / "ckpt-13", whole[0] / "ckpt-13")
  assert (tmp_path / "history.jsonl").read_bytes() == (whole[0] / "history.jsonl").read_bytes()


def test_evaluating_more_often_changes_no_weight_and_no_average(whole, tmp_path):
  """The wrappers mask weights in every call, for inference as well."""
  result = tiny.build(tmp_path, **{**SETTINGS, "validation_interval": 1}).run()
  for one, other in zip(result.state.variables(), whole[1].state.variables(), strict=True):
    assert one.numpy().tobytes() == other.numpy().tobytes(), one.name


def test_exporting_the_best_changes_no_weight_and_no_average(whole, tmp_path, monkeypatch):
  monkeypatch.setattr(export_module, "reload_in_fresh_process", reload_here)
  best = {**tiny.BEST, "export": ExportConfig(on_best=True)}
  built = tiny.build(tmp_path, **SETTINGS, **best)
  result = built.run()
  assert "exported the best weights" in built.said
  for one, other in zip(result.state.variables(), whole[1].state.variables(), strict=True):
    assert one.numpy().tobytes() == other.numpy().tobytes(), one.name
  loaded = tf.saved_model.load(str(tmp_path / "best_export"))
  assert any("mask" in weight.name for weight in loaded.weights)


def test_what_is_held_comes_back_also_when_the_body_raises():
  model = Pruned(tiny.TinyConfig()).build_model()
  pruning = build_pruning(model)
  kernel, _, _ = model.layers[0].pruning_vars[0]
  before = kernel.numpy()
  with pytest.raises(KeyError), pruning.held():
    kernel.assign(tf.zeros_like(kernel))
    raise KeyError
  assert kernel.numpy().tobytes() == before.tobytes()


def test_counts_begin_once():
  model = Pruned(tiny.TinyConfig()).build_model()
  pruning = build_pruning(model)
  counts = [layer.pruning_step for layer in model.layers]
  assert [int(count) for count in counts] == [-1, -1]
  pruning.begin()
  assert [int(count) for count in counts] == [0, 0]
  counts[0].assign(5)
  pruning.begin()
  assert [int(count) for count in counts] == [5, 0]
