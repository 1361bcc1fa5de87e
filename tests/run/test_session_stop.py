"""A run that is asked to stop saves what it has reached, and the next start goes on as if nothing had happened."""

import dataclasses

import numpy as np
import pytest

from official_trainer.errors import ExitCode, NotWritten, Preempted
from official_trainer.stop import StopRequest
from tests import tiny

FINAL = f"ckpt-{tiny.EVERYTHING['train_steps']}"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp("uninterrupted")
  tiny.build(folder, **tiny.EVERYTHING).run()
  return folder


def assert_goes_on_like(uninterrupted, folder):
  tiny.build(folder, **tiny.EVERYTHING).run()
  assert (folder / "history.jsonl").read_bytes() == (uninterrupted / "history.jsonl").read_bytes()
  tiny.assert_same_contents(folder / FINAL, uninterrupted / FINAL)


@pytest.mark.parametrize(("reason", "code"), [("SIGTERM", ExitCode.RESTART), ("Ctrl-C", ExitCode.INTERRUPTED)])
def test_a_stop_during_training_saves_the_step_reached(uninterrupted, tmp_path, reason, code):
  stop = StopRequest()

  def ask(event):
    if event.step == 4:
      stop.set(reason, code)

  built = tiny.build(tmp_path, **tiny.EVERYTHING, stop=stop, session={"train_actions": [ask]})
  with pytest.raises(Preempted, match=f"stopped by {reason} after step 4") as stopped:
    built.run()
  assert stopped.value.code == code
  assert tiny.committed(tmp_path)[-1] == 4  # Not a multiple of the interval.
  assert_goes_on_like(uninterrupted, tmp_path)


def test_a_stop_before_the_first_step_does_not_compile_it(uninterrupted, tmp_path):
  stop = StopRequest()
  stop.set("SIGTERM", ExitCode.RESTART)
  built = tiny.build(tmp_path, **tiny.EVERYTHING, stop=stop)
  built.trainer.train = lambda num_steps: pytest.fail("trained")
  built.trainer.rehearse_evaluation = lambda: ["accuracy"]
  with pytest.raises(Preempted, match="after step 0"):
    built.run()
  assert tiny.committed(tmp_path) == [0]
  assert_goes_on_like(uninterrupted, tmp_path)


def test_a_stop_during_an_evaluation_leaves_it_and_saves_raw_weights(uninterrupted, tmp_path):
  stop, batches = StopRequest(), []

  class Asking(tiny.TinyTask):
    def aggregate_logs(self, state, step_outputs):
      batches.append(1)
      if len(batches) == 3:  # One batch is the rehearsal's; this is the second of the first evaluation.
        stop.set("SIGTERM", ExitCode.RESTART)

  settings = {**tiny.EVERYTHING, "checkpoint_interval": 100}
  built = tiny.build(tmp_path, **settings, task_class=Asking, stop=stop)
  with pytest.raises(Preempted, match="after step 6"):
    built.run()
  assert not built.state.ema.is_swapped
  saved = tiny.contents(tmp_path / "ckpt-6")
  kernel, average = built.state.model.trainable_variables[0], built.state.ema.averages[0]
  np.testing.assert_array_equal(saved["model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"], kernel.numpy())
  assert (kernel.numpy() != average.numpy()).any()
  assert ("validation" not in [mode for _, mode in tiny.rows(tmp_path)]) and len(batches) < 1 + 4
  assert_goes_on_like(uninterrupted, tmp_path)


@pytest.mark.parametrize("recovery_max_trials", [0, -1])
def test_a_stop_never_saves_weights_that_are_not_finite(tmp_path, recovery_max_trials):
  stop = StopRequest()

  class Poisoned(tiny.TinyTask):
    def aggregate_logs(self, state, step_outputs):
      if built.state.step == 2:
        stop.set("SIGTERM", ExitCode.RESTART)

  settings = {"train_steps": 4, "checkpoint_interval": 100, "recovery_max_trials": recovery_max_trials}

  def poison(event):
    built.state.model.trainable_variables[0].assign(np.full((3, 2), np.nan, np.float32))

  session = {"train_actions": [poison]}
  built = tiny.build(tmp_path, **settings, task_class=Poisoned, stop=stop, session=session)
  with pytest.raises(Preempted, match="after step 2"):
    built.run()
  assert tiny.committed(tmp_path) == [0]


def test_a_writer_that_cannot_be_closed_does_not_hide_that_the_run_was_stopped(tmp_path, monkeypatch):
  stop = StopRequest()
  built = tiny.build(
    tmp_path, stop=stop, session={"train_actions": [lambda event: stop.set("SIGTERM", ExitCode.RESTART)]}
  )

  def full():
    raise NotWritten("history.jsonl", "No space left on device")

  monkeypatch.setattr(built.session._writer, "close", full)
  with pytest.raises(Preempted):
    built.run()
  assert "history.jsonl could not be written: No space left on device" in built.said


def test_a_full_disk_does_not_hide_why_a_run_failed(tmp_path, monkeypatch):
  built = tiny.build(tmp_path, session=tiny.interrupted_by(2))

  def full():
    raise NotWritten("history.jsonl", "No space left on device")

  monkeypatch.setattr(built.session._writer, "flush", full)
  monkeypatch.setattr(built.session._writer, "close", full)
  built.session.loop._actions = dataclasses.replace(
    built.session.loop._actions, after_loop=built.session.loop._actions.after_loop[-1:]
  )
  with pytest.raises(tiny.Interrupted):
    built.run()
