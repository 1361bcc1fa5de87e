import dataclasses
import json
import os

import pytest
import yaml

from official_trainer import notices
from official_trainer.checkpoint import manifest
from official_trainer.config.loading import load
from official_trainer.errors import ConfigError, ExitCode, PeerLost, Preempted
from official_trainer.run import session as session_module
from official_trainer.run_record import load_record
from official_trainer.runner import Runner
from tests import tiny


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


def loaded(*overrides, **kwargs):
  text = ",".join(overrides) or None
  return load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=text, **kwargs)


def run(folder, *overrides, mode="train", checkpoint=None, allow_config_change=(), **kwargs):
  runner = Runner(
    loaded(*overrides, **kwargs),
    mode=mode,
    model_dir=str(folder),
    checkpoint=checkpoint and str(checkpoint),
    allow_config_change=allow_config_change,
  )
  return runner.run()


SHORT = ("trainer.train_steps=2",)


def test_d36_frozen_statistics_without_pretrained_weights_are_refused_with_both_keys(tmp_path):
  frozen = (*SHORT, "task.batchnorm=true", "trainer.batch_norm.freeze_statistics=[norm]")
  with pytest.raises(ConfigError) as error:
    run(tmp_path / "new", *frozen)
  text = str(error.value)
  assert "trainer.batch_norm.freeze_statistics: needs statistics that were trained" in text
  assert "Set one of task.init.checkpoint, task.init_backbone.checkpoint, task.init_checkpoint" in text
  run(tmp_path / "trained", *SHORT, "task.batchnorm=true")
  assert run(tmp_path / "again", *frozen, checkpoint=tmp_path / "trained" / "ckpt-2").step == 2


def test_a_run_leaves_what_users_look_for(tmp_path):
  best = (
    "trainer.best_checkpoint_export_subdir=best_ckpt",
    "trainer.best_checkpoint_eval_metric=accuracy",
  )
  result = run(tmp_path, *SHORT, *best, mode="train_and_eval")
  assert result.step == 2
  assert {
    "best_ckpt",
    "checkpoint",
    "ckpt-2.index",
    "ckpt-2.manifest.json",
    "history.jsonl",
    "params.yaml",
    "params_provenance.yaml",
    "run.json",
    "timings.jsonl",
    "train",
    "validation",
  } < set(os.listdir(tmp_path))
  assert os.listdir(tmp_path / "train") and os.listdir(tmp_path / "validation")


def test_a_manifest_says_what_made_the_checkpoint(tmp_path):
  run(tmp_path, *SHORT, "runtime.seed=5")
  found = manifest.verify(str(tmp_path / "ckpt-2"))
  assert (found["seed"], found["num_replicas"], found["step"]) == (5, 1, 2)
  assert set(found["versions"]) == {"python", "tensorflow", "tf_keras"}


# ---- The seed ---------------------------------------------------------------------------------------


def test_a_seed_that_is_not_given_is_drawn_recorded_and_reused(tmp_path):
  run(tmp_path, *SHORT)
  seed = load_record(str(tmp_path)).seed
  params = yaml.safe_load((tmp_path / "params.yaml").read_text("utf-8"))
  assert params["runtime"]["seed"] == seed
  assert "the run's record" in (tmp_path / "params_provenance.yaml").read_text("utf-8")
  run(tmp_path, "trainer.train_steps=4", allow_config_change=["trainer.train_steps"])
  assert load_record(str(tmp_path)).seed == seed
  assert manifest.verify(str(tmp_path / "ckpt-4"))["seed"] == seed


def test_another_seed_than_the_recorded_one_is_refused_and_nothing_is_touched(tmp_path):
  run(tmp_path, *SHORT, "runtime.seed=5")
  before = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
  with pytest.raises(ConfigError, match="was started with seed 5, the config says 6"):
    run(tmp_path, *SHORT, "runtime.seed=6")
  assert {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("seed", [0, 5])
def test_t7_two_runs_of_one_seed_end_with_the_same_bytes_and_another_seed_does_not(tmp_path, seed):
  for name, value in (("a", seed), ("b", seed), ("c", seed + 1)):
    run(tmp_path / name, *SHORT, f"runtime.seed={value}", "task.dropout=0.5")
  histories = [(tmp_path / name / "history.jsonl").read_bytes() for name in "abc"]
  assert histories[0] == histories[1] != histories[2]
  tiny.assert_same_contents(tmp_path / "a" / "ckpt-2", tmp_path / "b" / "ckpt-2")


def test_t46_d25_the_saved_config_alone_starts_an_identical_run(tmp_path):
  run(tmp_path / "a", *SHORT, "task.dropout=0.25")
  again = load(experiment=None, config_files=[str(tmp_path / "a" / "params.yaml")])
  asked = loaded(*SHORT, "task.dropout=0.25").config
  drawn = dataclasses.replace(asked.runtime, seed=load_record(str(tmp_path / "a")).seed)
  assert again.config == dataclasses.replace(asked, runtime=drawn)
  Runner(again, mode="train", model_dir=str(tmp_path / "b")).run()
  for name in ("history.jsonl", "params.yaml"):
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
  tiny.assert_same_contents(tmp_path / "a" / "ckpt-2", tmp_path / "b" / "ckpt-2")


# ---- Drift ------------------------------------------------------------------------------------------


def test_a_run_is_not_continued_with_another_config_unless_told_to(tmp_path, capsys):
  run(tmp_path, *SHORT)
  before = (tmp_path / "params.yaml").read_bytes()
  with pytest.raises(ConfigError) as refused:
    run(tmp_path, "trainer.train_steps=4", "trainer.max_to_keep=3", "task.dropout=0.5")
  assert [problem.path for problem in refused.value.problems] == [
    "task.dropout",
    "trainer.train_steps",
    "--allow_config_change=task.dropout,trainer.train_steps",
  ]
  assert "trainer.train_steps: was 2 when this run started, now 4." in str(refused.value)
  assert (tmp_path / "params.yaml").read_bytes() == before

  capsys.readouterr()
  run(tmp_path, "trainer.train_steps=4", "trainer.max_to_keep=3", allow_config_change=["trainer.train_steps"])
  said = capsys.readouterr().err
  assert "the config is not that of the last start: trainer.max_to_keep: 5 -> 3" in said
  assert "the config is not that of the last start: trainer.train_steps: 2 -> 4" in said
  params = yaml.safe_load((tmp_path / "params.yaml").read_text("utf-8"))
  assert params["trainer"]["train_steps"] == 4

  capsys.readouterr()
  run(tmp_path, "trainer.train_steps=4", "trainer.max_to_keep=3")
  assert "not that of the last start" not in capsys.readouterr().err


# ---- Modes ------------------------------------------------------------------------------------------


def test_an_evaluation_of_an_empty_folder_is_an_error_and_writes_nothing(tmp_path):
  with pytest.raises(ConfigError, match="--model_dir: there is no checkpoint at .*Train first"):
    run(tmp_path, mode="eval")
  assert os.listdir(tmp_path) == []


def test_an_evaluation_of_the_best_gives_its_recorded_values_and_leaves_the_run_alone(tmp_path):
  settings = (
    "trainer.best_checkpoint_export_subdir=best_ckpt",
    "trainer.best_checkpoint_eval_metric=validation_loss",
    "task.batchnorm=true",
    "trainer.optimizer_config.ema.average_decay=0.9",
  )
  run(tmp_path, *settings, mode="train_and_eval")
  record = json.loads((tmp_path / "best_ckpt" / "info.json").read_text("utf-8"))

  def files():
    return {
      os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mtime_ns
      for folder, _, names in os.walk(tmp_path)
      for name in names
      if not folder.endswith("/eval")
    }

  before = files()
  result = run(tmp_path, *settings, mode="eval", checkpoint=tmp_path / "best_ckpt")
  assert result.metrics == {k: v for k, v in record.items() if not k.startswith("best_ckpt")}
  assert result.step == record["best_ckpt_global_step"]
  assert files() == before


@pytest.mark.parametrize("seed", [5, 6])
def test_an_evaluation_takes_a_config_of_any_seed(tmp_path, seed):
  trained = run(tmp_path, *SHORT, "runtime.seed=5", mode="train_and_eval")
  assert run(tmp_path, f"runtime.seed={seed}", mode="eval").metrics == trained.metrics


def test_a_metric_that_nobody_reports_is_refused_before_anything_is_saved(tmp_path):
  with pytest.raises(ConfigError, match=r"'acuracy' is not reported.*Did you mean 'accuracy'"):
    run(
      tmp_path,
      "trainer.best_checkpoint_export_subdir=best_ckpt",
      "trainer.best_checkpoint_eval_metric=acuracy",
      mode="train_and_eval",
    )
  assert tiny.committed(tmp_path) == []


def test_a_watching_evaluation_scores_what_is_there_and_ends_with_the_final_step(tmp_path):
  run(tmp_path)
  result = run(tmp_path, mode="continuous_eval")
  assert result.step == 6
  assert set(result.metrics) == {"accuracy", "validation_loss"}


def test_steps_can_be_built_differently_by_overriding_them(tmp_path):
  class Mine(Runner):
    def build_task(self):
      self.task = super().build_task()
      return self.task

  mine = Mine(loaded(*SHORT), mode="train", model_dir=str(tmp_path), quiet=True)
  result = mine.run()
  assert isinstance(mine.task, tiny.TinyTask) and mine.task.logging_dir == str(tmp_path)
  assert result.step == 2


# ---- Stops -----------------------------------------------------------------------------------------------------------


class Stopped(Runner):
  """Is asked to stop while the trainer is built."""

  reason, code = "SIGTERM", ExitCode.RESTART

  def build_trainer(self, task):
    self._stop.set(self.reason, self.code)
    return super().build_trainer(task)


def stopped_at_once(folder, runner_cls=Stopped):
  with pytest.raises(Preempted) as stopped:
    runner_cls(loaded(*SHORT), mode="train", model_dir=str(folder)).run()
  return stopped.value


def test_a_second_stop_without_a_step_of_progress_is_no_longer_worth_a_restart(tmp_path):
  assert stopped_at_once(tmp_path).code == ExitCode.RESTART
  again = stopped_at_once(tmp_path)
  assert again.code == ExitCode.ERROR
  assert "SIGTERM, for the second time without a step of progress after step 0" in str(again)
  assert load_record(str(tmp_path)).stopped_at == 0


def lost_at(folder, reached):
  """Loses a worker with `reached` updates completed, of which none is in a checkpoint."""

  class Losing(Runner):
    def _run_session(self, strategy):
      raise PeerLost(0, "worker 1", reached)

  with pytest.raises(PeerLost) as lost:
    Losing(loaded(*SHORT), mode="train", model_dir=str(folder)).run()
  return lost.value


def test_workers_that_are_lost_twice_between_two_checkpoints_do_not_end_the_job(tmp_path):
  assert [lost_at(tmp_path, reached).code for reached in (31, 33)] == [ExitCode.RESTART, ExitCode.RESTART]
  again = lost_at(tmp_path, 33)
  assert again.code == ExitCode.ERROR
  assert "for the second time without a step of progress, worker 1 is gone" in str(again)


def test_ctrl_c_keeps_its_code_however_often(tmp_path):
  class CtrlC(Stopped):
    reason, code = "Ctrl-C", ExitCode.INTERRUPTED

  assert [stopped_at_once(tmp_path, CtrlC).code for _ in range(2)] == [ExitCode.INTERRUPTED] * 2


def test_a_constant_learning_rate_that_was_changed_with_permission_is_used(tmp_path):
  """tf-keras saves it in the checkpoint, from which it came back in silence."""

  def run(rate, steps, **flags):
    changes = f"trainer.optimizer_config.learning_rate.constant.learning_rate={rate},trainer.train_steps={steps}"
    loaded = load(experiment="tiny", params_override=[changes])
    Runner(loaded, mode="train", model_dir=str(tmp_path), quiet=True, **flags).run()
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text("utf-8").splitlines()]
    return {row["step"]: row["metrics"]["learning_rate"] for row in rows}

  assert run(0.5, 4) == {2: 0.5, 4: 0.5}
  assert run(0.25, 8, allow_config_change=["trainer"]) == {2: 0.5, 4: 0.5, 6: 0.25, 8: 0.25}


def test_a_notice_of_the_platform_saves_and_asks_for_a_restart(tmp_path, monkeypatch):
  monkeypatch.setitem(notices.NOTICES, "gce", lambda: bool(manifest.committed_steps(str(tmp_path))))
  loaded = load(experiment="tiny", params_override=["runtime.preemption_notice=gce,trainer.train_steps=100000"])
  with pytest.raises(Preempted, match="stopped by the platform's preemption notice") as stopped:
    Runner(loaded, mode="train", model_dir=str(tmp_path), quiet=True).run()
  assert stopped.value.code == ExitCode.RESTART
  assert manifest.committed_steps(str(tmp_path))[-1] == stopped.value.step


# The config was compared before the seed of the run was put into it: even the command of the run was refused.
def test_a_step_is_replayed_with_the_command_of_the_run_but_not_with_another_seed(tmp_path):
  run(tmp_path, *SHORT)
  assert Runner(loaded(*SHORT), mode="replay", model_dir=str(tmp_path)).replay(2).step == 2
  seed = load_record(str(tmp_path)).seed + 1
  with pytest.raises(ConfigError, match="was started with seed"):
    Runner(loaded(*SHORT, f"runtime.seed={seed}"), mode="replay", model_dir=str(tmp_path)).replay(2)


# The error said "Give --replay_step instead", and came again.
def test_a_crash_bundle_that_cannot_be_read_is_no_obstacle_to_replaying_a_given_step(tmp_path):
  run(tmp_path, *SHORT)
  (tmp_path / "crashes").mkdir()
  (tmp_path / "crashes" / "step-2.json").write_text("{")
  with pytest.raises(ConfigError, match="Give --replay_step instead"):
    Runner(loaded(*SHORT), mode="replay", model_dir=str(tmp_path)).replay()
  assert Runner(loaded(*SHORT), mode="replay", model_dir=str(tmp_path)).replay(2).step == 2


def test_a_check_for_a_tpu_runs_no_step_and_writes_nothing(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  runner = Runner(loaded("trainer.train_steps=4"), mode="check_tpu", model_dir="")
  report = runner.check_tpu()
  assert report.is_clean, str(report)
  assert report.compiled == ("training", "evaluation")
  assert os.listdir(tmp_path) == []
  with pytest.raises(ConfigError, match="check_tpu runs no step: call `check_tpu` instead of `run`"):
    runner.run()


def test_a_continuous_evaluation_by_several_workers_is_refused(tmp_path, monkeypatch):
  cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
  with pytest.raises(ConfigError, match="--mode: continuous_eval runs in one process: give it the task 'evaluator'"):
    run(tmp_path, "runtime.distribution_strategy=multi_worker_mirrored", mode="continuous_eval")


def test_several_workers_under_a_strategy_for_one_are_refused(tmp_path, monkeypatch):
  cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
  with pytest.raises(ConfigError, match="2 processes to train, of which each would train by itself"):
    run(tmp_path, "runtime.distribution_strategy=one_device")
  assert os.listdir(tmp_path) == []
