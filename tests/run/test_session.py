"""One run: what it saves, reports and evaluates, and how it ends when something goes wrong."""

import json
import math
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint import store
from official_trainer.checkpoint.best_folder import read_record
from official_trainer.errors import ConfigError, NotWritten, TrainingDiverged
from official_trainer.optim.config import (
  EmaConfig,
)
from official_trainer.run import session as session_module
from official_trainer.run.session import RUN_MODES, Session
from official_trainer.testing import faults
from tests import tiny


@pytest.fixture(autouse=True)
def drawings(monkeypatch):
  """Leaves the picture at the end of each run out, and notes where it would be."""
  paths = []
  monkeypatch.setattr(session_module, "plot_history", lambda rows, path, title: paths.append(path))
  return paths


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp("uninterrupted")
  result = tiny.build(folder, **tiny.EVERYTHING).run()
  return folder, result


def weights(built):
  return [variable.numpy() for variable in built.trainer.model.variables]


def test_d60_a_run_saves_reports_and_evaluates_at_exactly_its_steps(uninterrupted):
  folder, result = uninterrupted
  assert tiny.committed(folder) == [3, 6, 9, 12, 13]  # Step 0 has been rotated out.
  assert tiny.steps_of(folder, "train") == [4, 8, 12, 13]
  assert tiny.steps_of(folder, "validation") == [6, 12, 13]
  assert result.step == 13 and result.model_dir == str(folder)
  assert result.history_path == str(folder / "history.jsonl")


def test_d62_the_result_holds_the_logs_of_the_last_evaluation(uninterrupted):
  folder, result = uninterrupted
  last = json.loads((folder / "history.jsonl").read_text("utf-8").splitlines()[-1])
  assert (last["step"], last["mode"]) == (13, "validation")
  assert result.metrics == last["metrics"]


def test_the_checkpoint_of_a_step_holds_the_row_of_that_step(uninterrupted):
  folder, _ = uninterrupted
  host = json.loads(tiny.contents(folder / "ckpt-12")["host/.ATTRIBUTES/VARIABLE_VALUE"])
  assert [12, "train"] in [row[:2] for row in host["history"]]
  assert host["last_eval_step"] == 6


def test_step_zero_is_saved_before_anything_is_trained(tmp_path):
  built = tiny.build(tmp_path, session=tiny.interrupted_by(2), checkpoint_interval=100)
  before = weights(built)
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert tiny.committed(tmp_path) == [0]
  saved = tiny.contents(tmp_path / "ckpt-0")["model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
  np.testing.assert_array_equal(saved, before[0])


def test_d61_the_last_step_is_saved_whatever_the_interval(tmp_path):
  tiny.build(tmp_path, mode="train", train_steps=5, checkpoint_interval=100).run()
  assert tiny.committed(tmp_path) == [0, 5]


def test_the_last_step_is_on_disk_also_when_the_last_evaluation_raises(tmp_path):
  built = tiny.build(
    tmp_path,
    train_steps=5,
    checkpoint_interval=100,
    validation_interval=100,
    session=tiny.interrupted_by(5, "validation"),
  )
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert tiny.committed(tmp_path) == [0, 5]


def test_intervals_off_the_grid_of_the_loops_get_their_exact_steps(tmp_path):
  settings = {"train_steps": 13, "steps_per_loop": 2, "checkpoint_interval": 5}
  tiny.build(tmp_path, **settings, validation_interval=6).run()
  assert tiny.committed(tmp_path) == [0, 5, 10, 13]
  assert tiny.steps_of(tmp_path, "train") == [2, 4, 6, 8, 10, 12, 13]
  assert tiny.steps_of(tmp_path, "validation") == [6, 12, 13]


def test_chosen_steps_are_saved_and_kept_for_good(tmp_path):
  tiny.build(tmp_path, mode="train", train_steps=8, max_to_keep=1, checkpoints_at=(3, 4)).run()
  assert tiny.committed(tmp_path) == [3, 4, 8]


def test_a_run_in_memory_works_and_resumes(tmp_path, drawings):
  folder = f"ram://{tmp_path.name}"
  tiny.build(folder, **tiny.BEST, train_steps=4).run()
  again = tiny.build(folder, **tiny.BEST)
  assert again.run().step == 6
  assert "resumed at step 4" in again.said
  assert tiny.committed(folder) == [0, 2, 4, 6]
  best = tiny.build(folder, mode="eval", session={"checkpoint": f"{folder}/best_ckpt"}).run()
  assert best.metrics["accuracy"] == read_record(f"{folder}/best_ckpt")["accuracy"]
  assert drawings == [f"{folder}/history.png"] * 2


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "run\\1"])
def test_a_folder_whose_checkpoints_could_not_be_read_back_is_refused(tmp_path, name):
  with pytest.raises(ConfigError, match=r"--model_dir: must not contain any of \* \? \[ \\"):
    tiny.build(tmp_path / name)
  assert os.listdir(tmp_path) == []


# ---- Saving that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 4, 6])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_d27_a_save_that_fails_ends_the_run_with_its_error(tmp_path, step, asynchronous):
  """Also the last one, which no later save would tell of."""
  with pytest.raises(NotWritten, match=f"ckpt-{step}.manifest"), faults.full_disk(f"ckpt-{step}.manifest.json"):
    tiny.build(tmp_path, async_checkpoint=asynchronous).run()
  assert step not in tiny.committed(tmp_path)
  assert tiny.build(tmp_path).run().step == 6


def test_a_save_that_was_begun_before_an_error_is_finished(tmp_path, monkeypatch):
  original, crashed = store.CheckpointStore._commit, threading.Event()

  def slow(self, step, prefix):
    if step == 4:
      crashed.wait(60)
    original(self, step, prefix)

  def crash(event):
    if event.step == 4:
      crashed.set()
      raise tiny.Interrupted

  monkeypatch.setattr(store.CheckpointStore, "_commit", slow)
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, session={"train_actions": [crash]}).run()
  assert tiny.committed(tmp_path)[-1] == 4


# ---- Values that are not finite ------------------------------------------------------------------


class Diverging(tiny.TinyTask):
  """Its loss turns NaN at step 4; the weights follow in the same update."""

  bad_value = math.nan

  def build_losses(self, labels, model_outputs, aux_losses=None):
    loss = super().build_losses(labels, model_outputs)
    step = tf.cast(self.optimizer_steps, tf.int64)
    return tf.where(step == 3, self.bad_value, 1.0) * loss

  def train_step(self, inputs, model, optimizer, metrics=None, **mask):
    self.optimizer_steps = optimizer.iterations
    return super().train_step(inputs, model=model, optimizer=optimizer, metrics=metrics, **mask)

  def validation_step(self, inputs, model, metrics=None, **mask):
    self.optimizer_steps = tf.constant(0, tf.int64)
    return super().validation_step(inputs, model=model, metrics=metrics, **mask)


class Poisoning(tiny.TinyTask):
  """Writes NaN into a weight at step 4, while every loss stays finite."""

  def train_step(self, inputs, model, optimizer, metrics=None, **mask):
    logs = super().train_step(inputs, model=model, optimizer=optimizer, metrics=metrics, **mask)
    poison = tf.where(optimizer.iterations == 4, math.nan, 0.0)
    model.layers[-1].kernel.assign_add(tf.fill([3, 2], poison))
    return logs


@pytest.mark.parametrize(
  ("task_class", "text"),
  [
    (Diverging, "at step 4: the training loss is nan. It happened after step 2; nothing of it was saved."),
    (Poisoning, "at step 4: 1 variables are not finite: dense"),
  ],
)
def test_a_run_that_diverges_stops_and_saves_and_reports_nothing_of_it(tmp_path, task_class, text):
  with pytest.raises(TrainingDiverged, match=text):
    tiny.build(tmp_path, task_class=task_class, **tiny.BEST).run()
  assert tiny.committed(tmp_path) == [0, 2]
  assert tiny.steps_of(tmp_path, "train") == [2]
  assert read_record(str(tmp_path / "best_ckpt"))["best_ckpt_global_step"] == 2
  assert tiny.build(tmp_path, **tiny.BEST).run().step == 6  # On clean data a restart succeeds.


def test_where_divergence_is_let_pass_it_is_still_not_saved(tmp_path, caplog):
  tiny.build(tmp_path, task_class=Poisoning, **tiny.BEST, recovery_max_trials=-1).run()
  assert tiny.committed(tmp_path) == [0, 2]
  assert "Step 4 is not saved: 1 variables are not finite" in caplog.text
  assert read_record(str(tmp_path / "best_ckpt"))["best_ckpt_global_step"] == 2
  assert tiny.steps_of(tmp_path, "train") == [2, 4, 6]


def test_weights_that_are_not_finite_are_never_exported_as_the_best(tmp_path):
  """No checkpoint is due at step 4, where the first evaluation sees the poisoned weights."""
  settings = {"checkpoint_interval": 100, "validation_interval": 4, "train_steps": 5}
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=Poisoning, **tiny.BEST, **settings).run()
  assert read_record(str(tmp_path / "best_ckpt")) is None


# ---- Modes ---------------------------------------------------------------------------------------


def test_an_unknown_mode_is_refused_with_the_known_ones(tmp_path):
  with pytest.raises(ConfigError, match=f"must be one of {', '.join(RUN_MODES)}, got 'training'"):
    tiny.build(tmp_path, mode="training")


def test_a_loop_class_that_is_not_ours_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"must be a subclass of official_trainer\.loop\.Loop"):
    tiny.build(tmp_path, session={"loop_cls": Session})


def test_mode_train_never_evaluates(tmp_path):
  built = tiny.build(tmp_path, mode="train")
  assert built.run().logs == {}
  assert tiny.steps_of(tmp_path, "train") == [2, 4, 6]
  assert tiny.steps_of(tmp_path, "validation") == []


def test_mode_train_and_post_eval_evaluates_once_at_the_end(tmp_path):
  result = tiny.build(tmp_path, mode="train_and_post_eval").run()
  assert tiny.rows(tmp_path) == [(2, "train"), (4, "train"), (6, "train"), (6, "validation")]
  assert set(result.metrics) == {"accuracy", "validation_loss"}


def test_mode_eval_scores_the_newest_checkpoint_and_writes_none(tmp_path):
  trained = tiny.build(tmp_path).run()
  before = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
  result = tiny.build(tmp_path, mode="eval").run()
  assert result.metrics == trained.metrics and result.step == 6
  assert {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)} == before


def test_mode_eval_of_an_empty_folder_is_an_error(tmp_path):
  with pytest.raises(ConfigError, match="--model_dir: there is no checkpoint at .*Train first"):
    tiny.build(tmp_path, mode="eval").run()


# ---- Errors inside an evaluation -----------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_evaluation_that_is_interrupted_leaves_the_raw_weights(tmp_path, error):
  class Failing(tiny.TinyTask):
    def aggregate_logs(self, state, step_outputs):
      raise error("in the middle")

  settings = {"ema": EmaConfig(average_decay=0.5), "train_steps": 2}
  built = tiny.build(tmp_path, task_class=Failing, **settings)
  with pytest.raises(error):
    built.run()
  assert not built.state.ema.is_swapped
  tiny.build(tmp_path / "whole", **settings, mode="train").run()
  saved = tiny.contents(tmp_path / "whole" / "ckpt-2")
  kernel = saved["model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
  np.testing.assert_array_equal(built.trainer.model.layers[-1].kernel.numpy(), kernel)


def test_t61_an_error_flushes_and_closes_the_writers_and_saves_nothing(tmp_path):
  built = tiny.build(tmp_path, checkpoint_interval=100, session=tiny.interrupted_by(4))
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert tiny.committed(tmp_path) == [0]
  assert tiny.steps_of(tmp_path, "train") == [2, 4]
