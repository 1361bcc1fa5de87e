"""An evaluation that follows a run: mode `continuous_eval`."""

import json
import os
import shutil

import pytest

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best import BestCheckpoint
from official_trainer.errors import BrokenCheckpoint, CheckpointMismatch, ExitCode, Preempted
from official_trainer.run import watch as watch_module
from official_trainer.stop import StopRequest
from tests import tiny


class Clock:
  """Time that passes only while somebody sleeps, and things that happen meanwhile."""

  def __init__(self, *events):
    self.now = 0.0
    self.slept = 0
    self.events = list(events)

  def __call__(self):
    return self.now

  def sleep(self, secs):
    self.slept += 1
    self.now += secs
    if self.events:
      self.events.pop(0)()


def watch(folder, clock, evaluated, **settings):
  return tiny.build(
    folder,
    mode="continuous_eval",
    session={
      "clock": clock,
      "sleep": clock.sleep,
      "eval_actions": [lambda event: evaluated.append(event.step)],
    },
    **settings,
  )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A finished run with checkpoints of steps 0, 2, 4 and 6."""
  folder = tmp_path_factory.mktemp("trained")
  tiny.build(folder).run()
  return folder


def give(source, target, *steps):
  """Makes checkpoints appear in a folder, the manifest last."""
  os.makedirs(target, exist_ok=True)
  for step in steps:
    for name in sorted(tiny.files_of(source, step), key=lambda name: "manifest" in name):
      shutil.copy(source / name, target / name)


def take(folder, step):
  for name in sorted(tiny.files_of(folder, step), key=lambda name: "manifest" not in name):
    os.remove(os.path.join(folder, name))


def test_a_late_evaluator_scores_every_checkpoint_in_order_and_ends_with_the_final_step(trained, tmp_path):
  give(trained, tmp_path, 2, 4, 6)
  clock, evaluated = Clock(), []
  result = watch(tmp_path, clock, evaluated, **tiny.BEST).run()
  assert evaluated == [2, 4, 6]
  assert clock.slept == 0
  assert result.step == 6
  whole = json.loads((trained / "history.jsonl").read_text("utf-8").splitlines()[-1])["metrics"]
  assert {name: result.metrics[name] for name in whole} == whole
  assert (tmp_path / "best_ckpt" / "info.json").exists()


def test_an_early_evaluator_waits_for_checkpoints_that_come_one_by_one(trained, tmp_path):
  folder, evaluated = tmp_path / "later", []
  clock = Clock(
    lambda: None,
    lambda: give(trained, folder, 0),
    lambda: give(trained, folder, 2, 4),
    lambda: give(trained, folder, 6),
  )
  watch(folder, clock, evaluated).run()
  assert evaluated == [0, 2, 4, 6]


def test_a_checkpoint_that_vanishes_while_it_is_read_is_a_warning(trained, tmp_path, monkeypatch):
  give(trained, tmp_path, 2, 4, 6)
  verify = manifest.verify

  def vanishing(prefix):
    if prefix.endswith("ckpt-4"):
      take(tmp_path, 4)
    return verify(prefix)

  monkeypatch.setattr(watch_module.manifest, "verify", vanishing)
  evaluated = []
  built = watch(tmp_path, Clock(), evaluated)
  built.run()
  assert evaluated == [2, 6]
  assert "ckpt-4 vanished while it was read" in built.said


def test_a_checkpoint_that_vanishes_between_verifying_and_restoring_is_a_warning(trained, tmp_path, monkeypatch):
  give(trained, tmp_path, 2, 4, 6)
  restore = watch_module.restore_exactly

  def vanishing(checkpoint, prefix, **kwargs):
    if prefix.endswith("ckpt-4"):
      take(tmp_path, 4)
    return restore(checkpoint, prefix, **kwargs)

  monkeypatch.setattr(watch_module, "restore_exactly", vanishing)
  evaluated = []
  watch(tmp_path, Clock(), evaluated).run()
  assert evaluated == [2, 6]


def test_a_checkpoint_that_is_there_and_broken_is_an_error(trained, tmp_path):
  give(trained, tmp_path, 2)
  (tmp_path / "ckpt-2.index").write_bytes(b"")
  with pytest.raises(BrokenCheckpoint, match=r"ckpt-2\.index has 0 bytes"):
    watch(tmp_path, Clock(), []).run()


def test_a_checkpoint_of_another_model_is_an_error(trained, tmp_path):
  give(trained, tmp_path, 2)
  with pytest.raises(CheckpointMismatch, match="in the checkpoint, not in the model|shapes differ"):
    watch(tmp_path, Clock(), [], task={"hidden": (3,)}).run()


def test_an_evaluator_gives_up_when_nothing_came_for_too_long(trained, tmp_path):
  give(trained, tmp_path, 2)
  clock = Clock(*[lambda: None] * 7, lambda: give(trained, tmp_path, 4))
  evaluated = []
  watch(tmp_path, clock, evaluated, continuous_eval_timeout=10).run()
  assert evaluated == [2, 4]
  assert clock.now == 8 + 10  # The wait begins anew with each checkpoint.


def test_an_evaluator_of_a_folder_that_never_comes_ends_without_a_result(tmp_path):
  clock = Clock()
  result = watch(tmp_path / "never", clock, [], continuous_eval_timeout=5).run()
  assert result.logs == {} and clock.now == 5


def test_the_best_of_an_evaluator_survives_its_restart(trained, tmp_path):
  give(trained, tmp_path, 2)
  watch(tmp_path, Clock(), [], **tiny.BEST, continuous_eval_timeout=0).run()
  rule = BestCheckpoint(str(tmp_path / "best_ckpt"), "accuracy")
  first = rule.best_value
  give(trained, tmp_path, 4, 6)
  watch(tmp_path, Clock(), [], **tiny.BEST).run()
  assert BestCheckpoint(str(tmp_path / "best_ckpt"), "accuracy").best_value >= first


def test_a_stop_ends_the_wait_for_the_next_checkpoint(trained, tmp_path):
  give(trained, tmp_path, 2)
  stop, evaluated = StopRequest(), []
  clock = Clock(lambda: None, lambda: stop.set("SIGTERM", ExitCode.RESTART))
  with pytest.raises(Preempted, match="stopped by SIGTERM"):
    watch(tmp_path, clock, evaluated, stop=stop).run()
  assert (evaluated, clock.slept) == ([2], 2)


# The watchdog took the wait for the next checkpoint for a hang.
def test_a_long_wait_for_the_next_checkpoint_is_no_hang(tmp_path):
  tiny.build(tmp_path, mode="train", train_steps=2).run()
  stuck = []
  clock = Clock(*[lambda: stuck.append(watched.session._watchdog.stuck_for())] * 20)
  watched = tiny.build(
    tmp_path,
    mode="continuous_eval",
    session={"clock": clock, "sleep": clock.sleep, "hang_secs": 1.0},
    train_steps=4,
    continuous_eval_timeout=20,
  )
  watched.run()
  assert stuck == [None] * 20
