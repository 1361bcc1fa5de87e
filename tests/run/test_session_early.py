"""Runs that are done before their last step."""

import shutil

import pytest

from official_trainer.actions.config import EarlyStopConfig, StopAtConfig
from official_trainer.errors import ConfigError
from official_trainer.run import session as session_module
from tests import tiny


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


class Scored(tiny.TinyTask):
  """Reports a score that is best at step 4."""

  evaluations: list = []

  def aggregate_logs(self, state, step_outputs):
    return True

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    step = int(global_step)
    self.evaluations.append(step)
    return {"score": 1.0 if step == 4 else 0.5}


EARLY = {
  **tiny.BEST,
  "train_steps": 20,
  "steps_per_loop": 4,
  "checkpoint_interval": 3,
  "validation_interval": 2,
  "best_checkpoint_eval_metric": "score",
  "early_stop": EarlyStopConfig(metric="score", patience=2),
}
"""Ends at the evaluation of step 8, where no checkpoint is due."""


def built(folder, **more):
  return tiny.build(folder, task_class=Scored, **{**EARLY, **more})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
  folder = tmp_path_factory.mktemp("stopped")
  Scored.evaluations.clear()
  run = built(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    result = run.run()
  return folder, run, result, [step for step in Scored.evaluations if step]


def test_early_stopping_ends_at_the_expected_evaluation_with_its_last_step_saved(stopped):
  folder, run, result, evaluations = stopped
  reason = "early stop: score was not higher than 1 in 2 evaluations"
  assert result.step == 8 and result.ended_early == reason
  assert run.said.count(f"done at step 8: {reason}") == 1
  assert tiny.steps_of(folder, "validation") == evaluations == [2, 4, 6, 8]  # The last evaluation is not repeated.
  assert tiny.committed(folder)[-2:] == [6, 8]
  assert result.metrics["score"] == 0.5


EVENTS = [(2, "train"), (2, "validation"), (3, "train"), (4, "train"), (4, "validation"), (6, "train"),
          (6, "validation"), (8, "train"), (8, "validation")]  # fmt: skip


@pytest.mark.parametrize("events", [EVENTS[-3:], pytest.param(EVENTS, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_wherever_it_is_ends_with_the_same_bytes(stopped, tmp_path, events):
  whole, _, _, _ = stopped
  for step, mode in events:
    with pytest.raises(tiny.Interrupted):
      built(tmp_path, session=tiny.interrupted_by(step, mode)).run()
  assert built(tmp_path).run().step == 8
  for name in ("history.jsonl", "best_ckpt/info.json"):
    assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
  tiny.assert_same_contents(tmp_path / "ckpt-8", whole / "ckpt-8")


def test_started_again_it_trains_nothing_and_evaluates_once(stopped):
  folder, _, _, _ = stopped
  before = (folder / "history.jsonl").read_bytes()
  again = built(folder)
  again.trainer.train = lambda num_steps: pytest.fail("trained")
  Scored.evaluations.clear()
  result = again.run()
  assert result.step == 8 and result.metrics["score"] == 0.5
  assert "early stop" in result.ended_early and again.said.count("done at step 8") == 1
  assert [step for step in Scored.evaluations if step] == [8]
  assert (folder / "history.jsonl").read_bytes() == before


def test_with_more_patience_it_goes_on_like_a_run_that_never_stopped(stopped, tmp_path):
  folder, _, _, _ = stopped
  more = {"train_steps": 10, "early_stop": EarlyStopConfig(metric="score", patience=3)}
  built(tmp_path, **more).run()
  shutil.copytree(folder, tmp_path / "again")
  result = built(tmp_path / "again", **more).run()
  assert result.step == 10 and result.ended_early is None  # It came to its last step.
  assert (tmp_path / "again" / "history.jsonl").read_bytes() == (tmp_path / "history.jsonl").read_bytes()
  tiny.assert_same_contents(tmp_path / "again" / "ckpt-10", tmp_path / "ckpt-10")


def test_a_target_ends_the_run_where_it_is_reached(tmp_path):
  result = built(tmp_path, early_stop=None, stop_at=StopAtConfig(metric="score", value=1.0)).run()
  assert result.step == 4 and result.ended_early == "target reached: score is 1, 1 was asked for"
  assert tiny.committed(tmp_path)[-1] == 4


@pytest.mark.parametrize("rule", ["early_stop", "stop_at"])
def test_a_metric_that_nobody_reports_is_refused_before_the_first_step(tmp_path, rule):
  config = {"early_stop": EarlyStopConfig(metric="scroe"), "stop_at": StopAtConfig(metric="scroe", value=1.0)}
  run = built(tmp_path, **{"early_stop": None, rule: config[rule]})
  with pytest.raises(ConfigError, match=f"trainer.{rule}.metric: 'scroe' is not reported .*Did you mean 'score'"):
    run.run()
  assert tiny.committed(tmp_path) == []


# ---- Time ----------------------------------------------------------------------------------------


class Clock:
  """Stands still until it is told."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


def timed(folder, *, limit, secs_at, **more):
  """A run whose inner loop up to a step takes as many seconds as `secs_at` says."""
  clock = Clock()
  run = tiny.build(
    folder, train_steps=8, checkpoint_interval=100, validation_interval=4, max_wall_secs=limit,
    **{**more, "session": {"clock": clock, **more.get("session", {})}},
  )  # fmt: skip
  train = run.trainer.train

  def slow(num_steps):
    output = train(num_steps)
    clock.now += secs_at.get(run.state.step, 0)
    return output

  run.trainer.train = slow
  return run


def test_a_run_ends_when_its_time_is_up_over_all_starts(tmp_path):
  with pytest.raises(tiny.Interrupted):
    timed(tmp_path, limit=10.0, secs_at={2: 6}, checkpoints_at=(2,), session=tiny.interrupted_by(2)).run()
  run = timed(tmp_path, limit=10.0, secs_at={6: 4}, checkpoints_at=(2,))
  result = run.run()
  assert result.step == 6 and result.ended_early == "time is up: trainer.max_wall_secs is 10"
  assert run.said.count("done at step 6: time is up") == 1
  assert tiny.committed(tmp_path) == [0, 2, 6]
  assert tiny.steps_of(tmp_path, "validation") == [4, 6]  # The last one once, although no evaluation was due.
  (tmp_path / "time.json").unlink()  # It is in the checkpoint as well.
  again = timed(tmp_path, limit=10.0, secs_at={}, checkpoints_at=(2,))
  again.trainer.train = lambda num_steps: pytest.fail("trained")
  assert again.run().step == 6 and again.said.count("done at step 6: time is up") == 1
  assert timed(tmp_path, limit=20.0, secs_at={}, checkpoints_at=(2,)).run().step == 8


def test_an_evaluator_waits_for_nothing_after_a_run_whose_time_was_up(tmp_path):
  timed(tmp_path, limit=5.0, secs_at={4: 6}, mode="train").run()
  assert tiny.committed(tmp_path) == [0, 4]
  watching = tiny.build(tmp_path, mode="continuous_eval", train_steps=8,
                        session={"sleep": lambda secs: pytest.fail("waited")})  # fmt: skip
  assert watching.run().step == 4


def test_a_run_that_starts_from_another_ones_checkpoint_has_its_own_time(tmp_path):
  timed(tmp_path / "first", limit=5.0, secs_at={4: 6}, mode="train").run()
  given = {"checkpoint": str(tmp_path / "first")}
  assert timed(tmp_path / "second", limit=5.0, secs_at={}, mode="train", session=given).run().step == 8
