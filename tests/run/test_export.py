"""Exports of runs: a checkpoint by hand, and the best weights while a run trains."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint.best_folder import read_record
from official_trainer.config.loading import load
from official_trainer.errors import ConfigError, ExportRefused
from official_trainer.export.config import ExportConfig
from official_trainer.optim.config import EmaConfig
from official_trainer.run import export as export_module
from official_trainer.runner import Runner
from tests import tiny
from tests.export.reload_here import reload_here

EMA = {"ema": EmaConfig(average_decay=0.9)}
AVERAGING = "trainer.optimizer_config.ema.average_decay=0.9"
BEST = ("trainer.best_checkpoint_export_subdir=best_ckpt", "trainer.best_checkpoint_eval_metric=accuracy")


@pytest.fixture(autouse=True)
def reloads(monkeypatch):
  """Loads exports again in this process, and counts."""
  folders = []

  def reload(folder, inputs):
    folders.append(folder)
    return reload_here(folder, inputs)

  monkeypatch.setattr(export_module, "reload_in_fresh_process", reload)
  return folders


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
  """A run with averages, best weights and one checkpoint after them."""
  folder = tmp_path_factory.mktemp("run") / "a"
  loaded = load(
    experiment="tiny", experiment_modules=["tests.tiny"], params_override=",".join([AVERAGING, *BEST, "runtime.seed=3"])
  )
  Runner(loaded, mode="train_and_eval", model_dir=str(folder)).run()
  return folder


def exported(folder, *overrides, checkpoint=None):
  loaded = load(
    experiment=None, config_files=[str(folder / "params.yaml")], params_override=",".join(overrides) or None
  )
  return Runner(loaded, mode="export", model_dir=str(folder), checkpoint=checkpoint and str(checkpoint)).export()


def weights_in(folder):
  return [weight.numpy().tobytes() for weight in tf.saved_model.load(str(folder)).weights]


def stored(prefix, root):
  """Returns the values of the model, or of its averages, in a checkpoint: kernel and bias of its one layer."""
  reader = tf.train.load_checkpoint(str(prefix))
  names = {
    "model": ["model/layer_with_weights-0/kernel", "model/layer_with_weights-0/bias"],
    "ema": ["ema/0", "ema/1"],
  }[root]
  return [reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE").tobytes() for name in names]


@pytest.mark.parametrize(("weights", "root"), [("null", "ema"), ("averages", "ema"), ("raw", "model")])
def test_the_newest_checkpoint_is_exported_with_the_weights_that_are_wanted(run_dir, tmp_path, weights, root):
  done = exported(run_dir, f"trainer.export.weights={weights}", f"trainer.export.folder={tmp_path}")
  assert (done.folder, done.step) == (str(tmp_path / "6"), 6)
  assert weights_in(tmp_path / "6") == stored(run_dir / "ckpt-6", root)
  found = json.loads((tmp_path / "6" / "export.json").read_text("utf-8"))
  assert found["weights"] == {"ema": "averages", "model": "raw"}[root]
  assert (found["experiment"], found["checkpoint"], found["seed"]) == ("tiny", str(run_dir / "ckpt-6"), 3)
  assert set(found["versions"]) == {"python", "tensorflow", "tf_keras"}
  assert found["trials"]["serving_default"] == {"inputs": "validation data", "num_examples": 20, "result": "bit-equal"}


def test_an_export_goes_to_the_runs_folder_and_changes_nothing_else_in_it(run_dir):
  before = {name: os.stat(run_dir / name).st_mtime_ns for name in os.listdir(run_dir)}
  assert exported(run_dir).folder == str(run_dir / "export" / "6")
  after = {name: os.stat(run_dir / name).st_mtime_ns for name in os.listdir(run_dir)}
  assert after.pop("export")
  assert after == before


def test_another_checkpoint_is_exported_when_it_is_named(run_dir, tmp_path):
  done = exported(run_dir, f"trainer.export.folder={tmp_path}", checkpoint=run_dir / "ckpt-2")
  assert done.step == 2
  assert weights_in(tmp_path / "2") == stored(run_dir / "ckpt-2", "ema")


def test_the_best_weights_are_exported_as_they_were_evaluated(run_dir, tmp_path):
  done = exported(run_dir, "trainer.export.source=best", f"trainer.export.folder={tmp_path}")
  record = read_record(str(run_dir / "best_ckpt"))
  assert (done.step, done.weights) == (record["best_ckpt_global_step"], "averages")
  assert weights_in(done.folder) == stored(run_dir / "best_ckpt" / record["best_ckpt_file"], "model")


def test_raw_weights_cannot_be_had_from_evaluated_ones(run_dir):
  with pytest.raises(ConfigError, match="is 'raw', but .*best_ckpt-.* holds only the weights that were evaluated"):
    exported(run_dir, "trainer.export.weights=raw", checkpoint=run_dir / "best_ckpt")


@pytest.mark.parametrize(
  ("overrides", "checkpoint", "says"),
  [
    ([], "nowhere", "--checkpoint: there is no checkpoint at '.*nowhere'"),
    (["trainer.best_checkpoint_export_subdir=other", "trainer.export.source=best"], None, "other holds no weights"),
  ],
)
def test_a_checkpoint_that_is_not_there_is_refused(run_dir, overrides, checkpoint, says):
  with pytest.raises(ConfigError, match=says):
    exported(run_dir, *overrides, checkpoint=checkpoint and run_dir / checkpoint)


def test_without_validation_data_an_export_is_tried_on_random_inputs(run_dir, tmp_path, capsys, monkeypatch):
  def no_data(self, params):
    raise FileNotFoundError("the disk with the data is not there")

  monkeypatch.setattr(tiny.TinyTask, "build_source", no_data)
  exported(run_dir, f"trainer.export.folder={tmp_path}")
  assert "an export is tried on random inputs: the disk with the data is not there" in capsys.readouterr().err
  found = json.loads((tmp_path / "6" / "export.json").read_text("utf-8"))
  assert found["trials"]["serving_default"]["inputs"] == "random inputs"


def test_an_export_needs_one_process_whatever_trained_the_run(run_dir, tmp_path, monkeypatch):
  monkeypatch.setenv(
    "TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})
  )
  done = exported(run_dir, "runtime.distribution_strategy=multi_worker_mirrored", f"trainer.export.folder={tmp_path}")
  assert weights_in(done.folder) == stored(run_dir / "ckpt-6", "ema")


def test_weights_that_are_not_finite_are_not_exported(run_dir, tmp_path):
  model = tf.train.Checkpoint()
  model.model = tiny.TinyTask(tiny.TinyConfig()).build_model()
  model.model.variables[0].assign(tf.fill([3, 2], np.inf))
  prefix = model.write(str(tmp_path / "broken"))
  with pytest.raises(ConfigError, match="has variables that are not finite: dense.*/kernel"):
    exported(run_dir, checkpoint=prefix)


def test_run_is_no_way_to_export(run_dir):
  loaded = load(experiment=None, config_files=[str(run_dir / "params.yaml")])
  with pytest.raises(ConfigError, match="call `export` instead of `run`"):
    Runner(loaded, mode="export", model_dir=str(run_dir)).run()


# ---- After each new best ------------------------------------------------------------------------------------------


ON_BEST = {**tiny.BEST, **EMA, "export": ExportConfig(on_best=True)}


@pytest.fixture
def exporting(tmp_path):
  built = tiny.build(tmp_path / "a", **ON_BEST)
  built.run()
  return tmp_path / "a", built


def test_the_best_export_holds_the_best_weights_and_a_run_with_it_ends_with_the_same_bits(exporting, tmp_path, reloads):
  folder, built = exporting
  record = read_record(str(folder / "best_ckpt"))
  found = json.loads((folder / "best_export" / "export.json").read_text("utf-8"))
  assert found["step"] == record["best_ckpt_global_step"]
  assert found["weights"] == "averages"
  assert weights_in(folder / "best_export") == stored(folder / "best_ckpt" / record["best_ckpt_file"], "model")
  assert f"exported the best weights (step {found['step']}, averages) to {folder / 'best_export'}" in built.said
  assert len(reloads) == built.said.count("exported the best weights")
  tiny.build(tmp_path / "b", **{**tiny.BEST, **EMA}).run()
  tiny.assert_same_contents(folder / "ckpt-6", tmp_path / "b" / "ckpt-6")


def test_an_export_that_is_withdrawn_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
  def differs(folder, inputs):
    raise ExportRefused(folder, "it differs")

  monkeypatch.setattr(export_module, "reload_in_fresh_process", differs)
  built = tiny.build(tmp_path, **ON_BEST)
  assert built.run().step == 6
  assert "best_export is withdrawn: it differs" in built.said
  assert not os.path.exists(tmp_path / "best_export")
  best = read_record(str(tmp_path / "best_ckpt"))["best_ckpt_global_step"]
  assert (
    f"best_export is not there; the best weights are those of step {best}. Export them with --mode=export" in built.said
  )


def test_signatures_that_cannot_be_traced_end_the_run_before_its_first_step(tmp_path):
  class Broken(tiny.TinyTask):
    def postprocess(self, model_outputs):
      return tf.reshape(model_outputs, [7, 7])

  with pytest.raises(ConfigError, match="cannot be traced"):
    tiny.build(tmp_path, task_class=Broken, **ON_BEST).run()
  assert tiny.committed(tmp_path) == []


def test_a_run_that_was_killed_after_the_best_exports_it_again(tmp_path):
  crash = tiny.interrupted_by(2, mode="validation")
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, session=crash, **ON_BEST).run()
  tiny.build(tmp_path, **ON_BEST).run()
  found = json.loads((tmp_path / "best_export" / "export.json").read_text("utf-8"))
  assert found["step"] == read_record(str(tmp_path / "best_ckpt"))["best_ckpt_global_step"]


def test_a_continuous_evaluation_exports_what_it_finds_best(tmp_path):
  tiny.build(tmp_path, mode="train", **EMA).run()
  tiny.build(tmp_path, mode="continuous_eval", **ON_BEST).run()
  record = read_record(str(tmp_path / "best_ckpt"))
  assert weights_in(tmp_path / "best_export") == stored(tmp_path / "best_ckpt" / record["best_ckpt_file"], "model")
