"""Runs with several evaluation sets: stopped, resumed, changed."""

import pytest

from official_trainer.config.checks import problems
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError, ExitCode, Preempted
from official_trainer.optim.config import EmaConfig
from official_trainer.run import session as session_module
from official_trainer.stop import StopRequest
from tests import tiny
from tests.trainer_features.split_task import SplitTask


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


SETTINGS = {
  "task": {"evaluation_sets": {"train_split": DataConfig(tfds_split="train", global_batch_size=3)}},
  "best_checkpoint_export_subdir": "best_ckpt",
  "best_checkpoint_eval_metric": "train_split|validation_loss",
  "ema": EmaConfig(average_decay=0.5),
}


def built(folder, task_class=SplitTask, **more):
  return tiny.build(folder, task_class=task_class, **{**SETTINGS, **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    built(folder).run()
  return folder


def assert_same(folder, whole):
  for name in ("history.jsonl", "best_ckpt/info.json"):
    assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
  tiny.assert_same_contents(folder / "ckpt-6", whole / "ckpt-6")


def test_each_evaluation_leaves_a_row_for_each_set(whole):
  modes = ["train", "validation", "train_split"]
  assert tiny.rows(whole) == [(step, mode) for step in (2, 4, 6) for mode in modes]


def test_a_run_that_crashes_after_an_evaluation_ends_with_the_same_bytes(whole, tmp_path):
  with pytest.raises(tiny.Interrupted):
    built(tmp_path, session=tiny.interrupted_by(4, "validation")).run()
  built(tmp_path).run()
  assert_same(tmp_path, whole)


def test_a_stop_inside_a_named_set_repeats_the_whole_evaluation(whole, tmp_path):
  stop, seen = StopRequest(), []

  class Asking(SplitTask):
    def aggregate_logs(self, state, step_outputs):
      if run.trainer.evaluated_set == "train_split" and run.state.step == 4:
        stop.set("SIGTERM", ExitCode.RESTART)
      seen.append(run.trainer.evaluated_set)

  run = built(tmp_path, Asking, stop=stop)
  with pytest.raises(Preempted, match="after step 4"):
    run.run()
  assert seen[-2:] == ["validation", "train_split"]  # It was left after its first batch.
  assert not run.state.ema.is_swapped and run.state.host.last_eval_step == 2
  assert tiny.rows(tmp_path)[-1] == (4, "train")
  built(tmp_path).run()
  assert_same(tmp_path, whole)


def test_a_set_with_the_name_of_a_metric_is_refused_before_the_first_step(tmp_path):
  task = {"evaluation_sets": {"accuracy": DataConfig(global_batch_size=3)}}
  with pytest.raises(ConfigError, match="'accuracy' is the name of a metric of the evaluation"):
    built(tmp_path, task=task, best_checkpoint_eval_metric="validation_loss").run()
  assert tiny.committed(tmp_path) == []


def test_a_set_that_is_added_between_starts_is_reported_from_then_on(tmp_path):
  plain = {"best_checkpoint_eval_metric": "validation_loss", "task": {}}
  built(tmp_path, **plain, train_steps=4).run()
  built(tmp_path, best_checkpoint_eval_metric="validation_loss").run()
  assert tiny.rows(tmp_path)[-3:] == [(6, "train"), (6, "validation"), (6, "train_split")]
  assert (2, "train_split") not in tiny.rows(tmp_path)


def test_a_continuous_evaluation_goes_through_every_set(whole, tmp_path):
  result = built(whole, mode="continuous_eval", best_checkpoint_export_subdir="", train_steps=6).run()
  assert set(result.logs["train_split"]) == {"accuracy", "validation_loss"}


def test_the_settings_of_these_tests_fit_together():
  assert problems(tiny.experiment_config(**SETTINGS), "train_and_eval") == []
