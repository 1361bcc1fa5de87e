import json
import math
import os

import numpy as np
import orbit
import pytest
import tensorflow as tf
from official.core import config_definitions as cfg
from official.core import train_lib
from official.modeling import optimization
from official.utils.testing import mock_task

from official_trainer.compat.model_garden import (
  ExperimentRunner,
  maybe_create_best_ckpt_exporter,
  run_experiment,
)
from official_trainer.errors import ConfigError
from official_trainer.loop import Loop
from official_trainer.run import session as session_module
from official_trainer.run.session import RUN_MODES
from official_trainer.run_record import load_record
from tests import tiny


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


def their_config(**trainer):
  """A config of theirs for their mock task."""
  values = {
    "train_steps": 4,
    "steps_per_loop": 2,
    "checkpoint_interval": 2,
    "validation_interval": 2,
    "validation_steps": 3,
    "optimizer_config": optimization.OptimizationConfig(
      {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
      }
    ),
  }
  return cfg.ExperimentConfig(task=mock_task.MockTaskConfig(), trainer=cfg.TrainerConfig(**(values | trainer)))


def one_device():
  return tf.distribute.OneDeviceStrategy("CPU:0")


def run_theirs(folder, mode="train_and_eval", params=None, **kwargs):
  params = params or their_config()
  strategy = one_device()
  with strategy.scope():
    task = mock_task.MockTask(params.task)
  return run_experiment(strategy, task, mode, params, str(folder), **kwargs)


def run_ours(folder, mode="train_and_eval", config=None, **kwargs):
  config = config or tiny.experiment_config()
  return run_experiment(one_device(), tiny.TinyTask(config.task), mode, config, str(folder), **kwargs)


def history(folder):
  return (folder / "history.jsonl").read_text("utf-8")


# ---- A task of theirs -------------------------------------------------------------------------------


def test_their_task_with_their_config_trains_and_evaluates_unchanged(tmp_path):
  model, logs = run_theirs(tmp_path)
  assert isinstance(model, mock_task.MockModel)
  assert logs == {}
  assert tiny.committed(tmp_path) == [0, 2, 4]
  rows = [json.loads(line) for line in history(tmp_path).splitlines()]
  assert [(row["step"], row["mode"]) for row in rows] == [
    (2, "train"),
    (2, "validation"),
    (4, "train"),
    (4, "validation"),
  ]
  # What their task gathers on the host: one count for each of three batches.
  assert rows[-1]["metrics"]["counter"] == 3.0
  assert {"acc", "validation_loss"} < set(rows[-1]["metrics"])


def test_their_task_resumes(tmp_path):
  run_theirs(tmp_path / "parts", params=their_config(train_steps=2))
  run_theirs(tmp_path / "parts")
  run_theirs(tmp_path / "whole")
  assert load_record(str(tmp_path / "parts")) is not None
  assert tiny.committed(tmp_path / "parts") == [0, 2, 4]
  steps = [json.loads(line)["step"] for line in history(tmp_path / "parts").splitlines()]
  assert steps == [2, 2, 4, 4]


@pytest.mark.parametrize("mode", ["train", "train_and_eval"])
def test_logs_are_returned_when_a_post_evaluation_is_asked_for(tmp_path, mode):
  _, logs = run_theirs(tmp_path, mode, run_post_eval=True)
  assert logs["counter"] == 3.0
  assert math.isfinite(float(logs["validation_loss"]))


def test_the_mode_with_a_post_evaluation_returns_its_logs(tmp_path):
  _, logs = run_theirs(tmp_path, "train_and_post_eval")
  assert logs["counter"] == 3.0


def test_their_best_checkpoint_settings_are_honoured_and_survive_a_restart(tmp_path):
  best = {
    "best_checkpoint_export_subdir": "best",
    "best_checkpoint_eval_metric": "acc",
    "best_checkpoint_metric_comp": "higher",
  }
  run_theirs(tmp_path, params=their_config(**best))
  record = json.loads((tmp_path / "best" / "info.json").read_text("utf-8"))
  exporter = maybe_create_best_ckpt_exporter(their_config(**best), str(tmp_path))
  assert exporter.best_ckpt_logs == {"acc": record["acc"]}
  run_theirs(tmp_path, params=their_config(**best, train_steps=6))
  assert json.loads((tmp_path / "best" / "info.json").read_text("utf-8")) == record


def test_without_a_folder_or_a_rule_there_is_no_exporter(tmp_path):
  assert maybe_create_best_ckpt_exporter(their_config(), str(tmp_path)) is None
  best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "acc"}
  assert maybe_create_best_ckpt_exporter(their_config(**best), None) is None


def test_a_metric_that_nobody_reports_is_refused_before_the_first_step(tmp_path):
  best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
  with pytest.raises(ConfigError, match="'accuracy' is not reported by the evaluation"):
    run_theirs(tmp_path, params=their_config(**best))
  assert tiny.committed(tmp_path) == []


# ---- A task of ours ---------------------------------------------------------------------------------


def test_our_task_and_config_give_what_the_session_gives(tmp_path):
  run_ours(tmp_path / "compatible")
  tiny.build(tmp_path / "session").run()
  assert history(tmp_path / "compatible") == history(tmp_path / "session")


def test_a_run_with_dropout_resumes_to_the_bit(tmp_path):
  config = tiny.experiment_config(task={"dropout": 0.5})

  def crash(output):
    crash.loops += 1
    if crash.loops == 2:
      raise tiny.Interrupted

  crash.loops = 0
  with pytest.raises(tiny.Interrupted):
    run_ours(tmp_path / "parts", config=config, train_actions=[crash])
  run_ours(tmp_path / "parts", config=config)
  run_ours(tmp_path / "whole", config=config)
  assert history(tmp_path / "parts") == history(tmp_path / "whole")
  tiny.assert_same_contents(tmp_path / "parts" / "ckpt-6", tmp_path / "whole" / "ckpt-6")


def test_our_task_runs_under_their_trainer(tmp_path):
  params = their_config(validation_steps=3)
  params.task = cfg.TaskConfig(
    train_data=cfg.DataConfig(global_batch_size=4, is_training=True),
    validation_data=cfg.DataConfig(global_batch_size=6, is_training=False, drop_remainder=False),
  )
  strategy = one_device()
  with strategy.scope():
    task = tiny.TinyTask(tiny.TinyConfig())
  _, logs = train_lib.run_experiment(strategy, task, "train_and_eval", params, str(tmp_path), run_post_eval=True)
  assert 0 <= logs["accuracy"] <= 1 and logs["validation_loss"] > 0


# ---- Modes and arguments ----------------------------------------------------------------------------


def test_an_evaluation_of_an_empty_folder_passes_with_a_warning(tmp_path, capsys):
  run_ours(tmp_path, "eval")
  said = capsys.readouterr().err
  assert "holds no checkpoint: untrained weights are evaluated" in said
  assert "validation_loss" in said or "loss" in said
  assert tiny.committed(tmp_path) == []


def test_an_evaluation_loads_the_newest_checkpoint(tmp_path, capsys):
  run_ours(tmp_path)
  _, logs = run_ours(tmp_path, "eval", run_post_eval=True)
  last = json.loads(history(tmp_path).splitlines()[-1])["metrics"]
  assert {name: float(value) for name, value in logs.items()} == last
  assert "untrained" not in capsys.readouterr().err


def test_an_unknown_mode_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=f"must be one of {', '.join(RUN_MODES)}, got 'training'"):
    run_ours(tmp_path, "training")


@pytest.mark.parametrize("name", ["summary_manager", "eval_summary_manager"])
def test_a_summary_manager_is_refused_with_what_to_use(tmp_path, name):
  with pytest.raises(ConfigError, match="pass `train_actions` / `eval_actions` that write"):
    run_ours(tmp_path, **{name: object()})


def test_a_controller_that_is_no_loop_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"must be a subclass of official_trainer\.loop\.Loop"):
    run_ours(tmp_path, controller_cls=orbit.Controller)


def test_a_subclass_of_the_loop_is_used(tmp_path):
  class Mine(Loop):
    pass

  config = tiny.experiment_config()
  runner = ExperimentRunner(
    one_device(), tiny.TinyTask(config.task), "train", config, str(tmp_path), controller_cls=Mine
  )
  assert isinstance(runner.controller, Mine)
  assert runner.params is config and runner.model_dir == str(tmp_path)


def test_actions_get_what_the_trainer_returned(tmp_path):
  trained, evaluated = [], []
  run_ours(tmp_path, train_actions=[trained.append], eval_actions=[evaluated.append])
  assert len(trained) == len(evaluated) == 3
  assert {"accuracy", "training_loss", "learning_rate"} == set(trained[0])
  assert {"accuracy", "validation_loss"} == set(evaluated[0])


def test_a_trainer_that_was_built_before_is_used(tmp_path):
  built = tiny.build("unused")
  model, _ = run_ours(tmp_path, trainer=built.trainer)
  assert model is built.trainer.model
  assert load_record(str(tmp_path)).seed == tiny.SEED


@pytest.mark.parametrize("save_summary", [True, False])
def test_summaries_are_written_when_asked_for(tmp_path, save_summary):
  run_ours(tmp_path, save_summary=save_summary)
  found = {"train", "validation", "history.jsonl"} & set(os.listdir(tmp_path))
  assert found == ({"train", "validation", "history.jsonl"} if save_summary else set())


@pytest.mark.parametrize("asynchronous", [True, False, None])
def test_checkpoints_are_the_same_however_they_are_written(tmp_path, asynchronous):
  run_ours(tmp_path / "a", "train", enable_async_checkpointing=asynchronous)
  tiny.build(tmp_path / "b", mode="train", async_checkpoint=False).run()
  one, two = (tiny.contents(tmp_path / name / "ckpt-6") for name in "ab")
  for name in two:
    if name.startswith(("model/", "optimizer/")):
      np.testing.assert_array_equal(one[name], two[name])


def test_the_seed_of_the_config_is_recorded_and_another_one_refused(tmp_path):
  run_ours(tmp_path, "train")
  assert load_record(str(tmp_path)).seed == tiny.SEED
  with pytest.raises(ConfigError, match="was started with seed 7, the config says 8"):
    run_ours(tmp_path, "train", config=tiny.experiment_config(seed=8))
