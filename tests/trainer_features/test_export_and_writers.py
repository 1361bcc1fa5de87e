"""Exports and writers, as users ask for them."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.loading import load
from official_trainer.config.named import Named
from official_trainer.errors import ConfigError
from official_trainer.metrics.gathered import real_rows
from official_trainer.run import export as export_module
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from official_trainer.task import LABELS, MASK, PREDICTIONS
from official_trainer.testing.fault import SimulatedCrash
from official_trainer.testing.faults import crash_at
from official_trainer.writers import chosen
from official_trainer.writers.base import Writer
from tests import small_tasks, tiny
from tests.export.reload_here import reload_here
from tests.writers.fake_wandb import FakeWandb
from tests.writers.test_contract import csv_curves, history_curves, tensorboard_curves


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


class Probabilities(tiny.TinyTask):
  """Turns logits into probabilities, and gathers those of an evaluation."""

  gathers_predictions = True
  gathered: tuple = ()

  def postprocess(self, model_outputs):
    return {"probabilities": tf.nn.softmax(model_outputs), "class": tf.argmax(model_outputs, axis=-1)}

  def aggregate_logs(self, state, step_outputs):
    masks = step_outputs.get(MASK)
    rows = (real_rows(step_outputs[PREDICTIONS], masks), real_rows(step_outputs[LABELS], masks))
    return [*(state or []), rows]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    type(self).gathered = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *aggregated_logs)
    predictions, labels = self.gathered
    return {"share_right": np.mean(predictions["class"] == labels, dtype=np.float32)}


def test_d11_what_an_evaluation_gathers_is_what_an_export_serves(tmp_path, monkeypatch):
  monkeypatch.setattr(export_module, "reload_in_fresh_process", reload_here)
  monkeypatch.setattr(tiny, "TinyTask", Probabilities)
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override="trainer.train_steps=4")
  result = Runner(loaded, mode="train_and_eval", model_dir=str(tmp_path)).run()
  predictions, labels = Probabilities.gathered
  features, expected_labels = tiny.examples()
  assert labels.tolist() == expected_labels.tolist()  # 20 examples in batches of 6: each once, without the padding.
  assert result.metrics["share_right"] == result.metrics["accuracy"]
  exported = Runner(
    loaded.with_value("runtime.seed", None, origin="test"), mode="export", model_dir=str(tmp_path)
  ).export()
  served = tf.saved_model.load(exported.folder).signatures["serving_default"](inputs=tf.constant(features))
  assert served.keys() == predictions.keys() == {"probabilities", "class"}
  assert served["class"].numpy().tolist() == predictions["class"].tolist()
  # The batches are of other sizes.
  np.testing.assert_allclose(served["probabilities"], predictions["probabilities"], rtol=1e-6)


def test_d11_predictions_of_two_replicas_are_those_of_one(logical_cpus):
  class Gathering(small_tasks.Regression):
    gathers_predictions = True

    def postprocess(self, model_outputs):
      return model_outputs[:, 0] * 2.0

    def aggregate_logs(self, state, step_outputs):
      return [*(state or []), real_rows(step_outputs[PREDICTIONS], step_outputs.get(MASK))]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
      found.append(np.concatenate(aggregated_logs))
      return {}

  found = []
  for num_replicas in (1, 2):
    small_tasks.evaluate(small_tasks.build_trainer(task=Gathering, num_replicas=num_replicas))
  assert [len(rows) for rows in found] == [10, 10]
  np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_d11_nothing_is_gathered_unless_the_task_asks():
  seen = []

  class Silent(small_tasks.Regression):
    def aggregate_logs(self, state, step_outputs):
      seen.append(set(step_outputs))

  small_tasks.evaluate(small_tasks.build_trainer(task=Silent))
  assert seen[0] == {"loss"}


def run_with(tmp_path, *overrides):
  text = ",".join(["trainer.train_steps=4", *overrides])
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=text)
  return Runner(loaded, mode="train_and_eval", model_dir=str(tmp_path)).run()


def test_d64_every_sink_shows_the_same_run(tmp_path, monkeypatch):
  """The contract that all of them pass is tests/writers/test_contract.py."""
  wandb = FakeWandb()
  monkeypatch.setitem(sys.modules, "wandb", wandb)
  run_with(tmp_path, "trainer.writers=[csv,wandb]", "trainer.wandb.project=tests")
  expected = history_curves(tmp_path)
  assert [step for step, _ in expected[("train", "training_loss")]] == [2, 4]
  assert csv_curves(tmp_path) == expected
  sent = wandb.curves()
  assert {name: points for name, points in sent.items() if name in expected} == expected
  shown = tensorboard_curves(tmp_path)
  for name, points in expected.items():
    assert shown[name] == [(step, float(np.float32(value))) for step, value in points]
  [stored] = wandb.server.values()
  assert stored["config"]["trainer.train_steps"] == 4
  assert wandb.inits[0]["project"] == "tests"


def test_d64_a_writer_of_ones_own_is_asked_for_by_name(tmp_path, monkeypatch):
  monkeypatch.setattr(chosen, "_NAMED", Named("writer", chosen._BUILT_IN))
  written = []

  class Listed(Writer):
    def open(self, step, rows):
      written.append(("open", step, len(rows)))

    def scalars(self, step, mode, values):
      written.append((step, mode))

    def timings(self, step, mode, values):
      pass

    def text(self, step, tag, markdown):
      pass

    def flush(self):
      pass

    def close(self):
      written.append("close")

  chosen.register_writer("listed")(lambda context: Listed())
  run_with(tmp_path, "trainer.writers=[listed]")
  assert written == [("open", 0, 0), (2, "train"), (2, "validation"), (4, "train"), (4, "validation"), "close"]


def test_d64_a_sink_that_is_not_there_is_known_before_anything_starts(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ConfigError) as error:
    run_with(tmp_path / "a", "trainer.writers=[wandb,cvs]")
  assert "Install it: pip install wandb" in str(error.value)
  assert "there is no writer 'cvs'. Did you mean 'csv'?" in str(error.value)
  assert not (tmp_path / "a").exists()


def test_d64_tables_of_a_run_that_was_cut_have_the_bytes_of_a_whole_one(tmp_path):
  settings = ("trainer.train_steps=6", "trainer.checkpoint_interval=4", "trainer.writers=[csv]", "runtime.seed=5")
  run_with(tmp_path / "whole", *settings)
  with pytest.raises(SimulatedCrash), crash_at(5):
    run_with(tmp_path / "cut", *settings)
  run_with(tmp_path / "cut", *settings)
  for name in ("train", "validation"):
    whole = (tmp_path / "whole" / "csv" / f"{name}.csv").read_bytes()
    assert whole.count(b"\n") == 4
    assert (tmp_path / "cut" / "csv" / f"{name}.csv").read_bytes() == whole
