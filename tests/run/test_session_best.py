"""The best weights of a run."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint.best_folder import read_record
from official_trainer.errors import ConfigError
from tests import tiny


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp("uninterrupted")
  result = tiny.build(folder, **tiny.EVERYTHING).run()
  return folder, result


class Scored(tiny.TinyTask):
  """Reports as `score`, and nested, what the test wants at each step."""

  scores: dict = {}

  def aggregate_logs(self, state, step_outputs):
    return True

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    step = int(global_step)
    value = self.scores.get(step, 0.0)
    return {"score": value, "a": {"score": 0.0}, "b": {"score": value, "deep": {"er": value}}}


def scored(**scores):
  return type("Scored", (Scored,), {"scores": {int(k[1:]): v for k, v in scores.items()}})


def best_by(metric, **more):
  return {
    "best_checkpoint_export_subdir": "best_ckpt",
    "best_checkpoint_eval_metric": metric,
    **more,
  }


def best_step(folder):
  return read_record(str(folder / "best_ckpt"))["best_ckpt_global_step"]


@pytest.mark.parametrize(
  ("metric", "more", "expected"),
  [
    ("score", {}, 4),  # The first of two equal ones.
    ("score", {"best_checkpoint_metric_comp": "lower"}, 8),
    ("b|score", {}, 4),
    ("b|deep|er", {"best_checkpoint_metric_comp": "higher"}, 4),
  ],
)
def test_m32_the_best_is_found_in_whichever_direction_and_depth(tmp_path, metric, more, expected):
  task = scored(_2=math.nan, _4=0.9, _6=0.9, _8=0.1, _10=0.5)
  tiny.build(tmp_path, task_class=task, train_steps=10, **best_by(metric, **more)).run()
  assert best_step(tmp_path) == expected


def test_a_restart_keeps_the_best(tmp_path):
  task = scored(_2=0.9, _4=0.5, _6=0.6)
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, task_class=task, **best_by("score"), session=tiny.interrupted_by(4)).run()
  tiny.build(tmp_path, task_class=task, **best_by("score")).run()
  assert best_step(tmp_path) == 2


def test_the_best_and_the_last_are_both_there_whatever_the_intervals(tmp_path):
  task = scored(_2=0.9)
  tiny.build(
    tmp_path,
    task_class=task,
    train_steps=10,
    max_to_keep=1,
    checkpoint_interval=3,
    **best_by("score"),
  ).run()
  assert best_step(tmp_path) == 2
  assert tiny.committed(tmp_path) == [10]


def test_a_run_without_any_finite_score_ends_and_exports_nothing(tmp_path):
  task = scored(_2=math.nan, _4=math.inf, _6=math.nan)
  assert tiny.build(tmp_path, task_class=task, **best_by("score")).run().step == 6
  assert read_record(str(tmp_path / "best_ckpt")) is None


@pytest.mark.parametrize(("metric", "nearest"), [("acuracy", "accuracy"), ("b|scor", r"b\|score"), ("loss", "")])
def test_a_metric_that_nobody_reports_is_refused_before_the_first_step(tmp_path, metric, nearest):
  built = tiny.build(tmp_path, task_class=scored(), **best_by(metric))
  with pytest.raises(ConfigError) as raised:
    built.run()
  text = str(raised.value)
  assert f"'{metric}' is not reported by the evaluation" in text
  assert "Reported: accuracy, validation_loss, score, a|score, b|score, b|deep|er." in text
  if nearest:
    assert f"Did you mean '{nearest.replace(chr(92), '')}'?" in text
  assert built.state.step == 0
  assert tiny.committed(tmp_path) == []


def test_looking_at_the_metrics_beforehand_changes_no_bit(tmp_path):
  """The rehearsal is part of a run with a best metric, and not of one without."""
  task = {"hidden": (4,), "dropout": 0.5, "batchnorm": True}
  tiny.build(tmp_path / "with", **tiny.BEST, task=task, train_steps=2).run()
  tiny.build(tmp_path / "without", task=task, train_steps=2).run()
  one, two = (tiny.contents(tmp_path / name / "ckpt-2") for name in ("with", "without"))
  for name in one:
    if name.startswith(("model/", "optimizer/")):
      np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("metric", ["accuracy", "validation_loss"])
def test_the_exported_best_gives_its_recorded_values_to_the_bit(tmp_path, metric):
  settings = {**tiny.EVERYTHING, **best_by(metric)}
  tiny.build(tmp_path, **settings).run()
  record = read_record(str(tmp_path / "best_ckpt"))
  built = tiny.build(tmp_path, mode="eval", **settings, session={"checkpoint": str(tmp_path / "best_ckpt")})
  result = built.run()
  assert result.step == record["best_ckpt_global_step"]
  assert result.metrics == {name: value for name, value in record.items() if not name.startswith("best_ckpt")}


def test_the_exported_best_loads_as_a_plain_model_checkpoint(uninterrupted):
  folder, _ = uninterrupted
  model = tiny.build("unused", mode="eval", task=tiny.EVERYTHING["task"]).trainer.model
  checkpoint = tf.train.Checkpoint(model=model)
  prefix = tf.train.latest_checkpoint(str(folder / "best_ckpt"))
  checkpoint.read(prefix).assert_consumed()
  assert model.layers[-1].kernel.numpy().any()


def test_best_weights_are_the_averages_that_were_evaluated(tmp_path):
  settings = {**tiny.EVERYTHING, **best_by("validation_loss"), "train_steps": 6}
  tiny.build(tmp_path, **settings).run()
  best = tiny.contents(tmp_path / "best_ckpt" / "best_ckpt-6")
  state = tiny.contents(tmp_path / "ckpt-6")
  averages = [state[f"ema/{index}/.ATTRIBUTES/VARIABLE_VALUE"] for index in range(8)]
  found = sorted(value.tobytes() for name, value in best.items() if name.startswith("model/"))
  assert found == sorted(value.tobytes() for value in averages)


def test_a_record_that_cannot_be_written_ends_the_run_and_old_weights_and_record_agree(tmp_path, monkeypatch):
  from official_trainer.checkpoint import best_folder

  task = scored(_2=0.5, _4=0.8, _6=0.9)
  original, record = best_folder.write_text, tmp_path / "best_ckpt" / "info.json"

  def full(path, text):
    if path == str(record) and record.exists():
      raise OSError(28, "No space left on device", path)
    original(path, text)

  with monkeypatch.context() as patch:
    patch.setattr(best_folder, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
      tiny.build(tmp_path, task_class=task, **best_by("score")).run()
  assert best_step(tmp_path) == 2
  assert (tmp_path / "best_ckpt" / "best_ckpt-2.index").exists()
  tiny.build(tmp_path, task_class=task, **best_by("score")).run()
  assert best_step(tmp_path) == 6


# The names were checked at a fresh start only: a rule that was added ended the run at its first evaluation.
def test_a_rule_that_is_added_between_starts_is_checked_before_the_next_step(tmp_path):
  tiny.build(tmp_path, **{**tiny.EVERYTHING, "train_steps": 6}).run()
  added = {**tiny.EVERYTHING, "train_steps": 12, "best_checkpoint_eval_metric": "acuracy"}
  with pytest.raises(ConfigError, match="'acuracy' is not reported by the evaluation. Did you mean 'accuracy'"):
    tiny.build(tmp_path, **added).run()
  assert tiny.committed(tmp_path)[-1] == 6
