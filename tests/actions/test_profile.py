import contextlib
import os

import pytest
import tensorflow as tf

from official_trainer.actions.event import TRAIN, Event
from official_trainer.actions.profile import Profile
from official_trainer.cadence import Cadence


class Recorder:
  """Stands for TensorFlow's profiler, which has one for the whole process and takes long to write."""

  def __init__(self, monkeypatch):
    self.log = []
    profiler = tf.profiler.experimental
    monkeypatch.setattr(profiler, "start", lambda folder: self.log.append(("start", os.path.basename(folder))))
    monkeypatch.setattr(profiler, "stop", lambda: self.log.append("stop"))
    monkeypatch.setattr(profiler, "Trace", self.trace)

  def trace(self, name, **values):
    self.log.append((name, values))
    return contextlib.nullcontext()


@pytest.fixture
def recorder(monkeypatch):
  return Recorder(monkeypatch)


def built(**kwargs):
  said = []
  return Profile("runs/a/profile", **{"note": said.append, "warn": said.append, **kwargs}), said


def run(profile, train_steps=12, steps_per_loop=4, start=0):
  """Runs loops as `Loop` does, and returns where they ended."""
  cadence = Cadence(train_steps=train_steps, steps_per_loop=steps_per_loop, checkpoint_interval=100)
  step, ends = start, []
  while step < train_steps:
    goal = cadence.next_stop(step, profile.stops(step))
    with profile.recorded(step):
      pass
    profile(Event(step=goal, start=step, mode=TRAIN, output={}, metrics={}))
    step = goal
    ends.append(step)
  return ends


def traced(step):
  return ("train", {"step_num": step, "_r": 1})


def test_loops_end_at_the_borders_of_the_window_and_only_those_inside_are_recorded(recorder):
  profile, said = built(window=(3, 9))
  assert run(profile) == [3, 4, 8, 9, 12]
  assert recorder.log == [("start", "profile"), traced(3), traced(4), traced(8), "stop"]
  assert said == ["the profile from step 3 on is in runs/a/profile; see it with TensorBoard"]


def test_without_a_window_nothing_is_different(recorder):
  profile, _ = built()
  assert run(profile) == [4, 8, 12]
  assert recorder.log == []


def test_a_request_has_the_next_steps_recorded(recorder):
  asked = iter([0, 2, 0, 0, 0, 0])
  profile, _ = built(request=lambda: next(asked))
  assert run(profile) == [4, 6, 8, 12]
  assert recorder.log == [("start", "profile"), traced(4), "stop"]


def test_a_run_that_goes_on_inside_the_window_records_the_rest_of_it(recorder):
  profile, _ = built(window=(3, 9))
  assert run(profile, start=6) == [8, 9, 12]
  assert recorder.log == [("start", "profile"), traced(6), traced(8), "stop"]


def test_other_processes_stop_at_the_same_steps_and_record_nothing(recorder):
  profile, said = built(window=(3, 9), records=False)
  assert run(profile) == [3, 4, 8, 9, 12]
  assert recorder.log == [] and said == []


def test_a_profiler_that_fails_is_warned_about_once_and_changes_no_loop(recorder, monkeypatch):
  def start(folder):
    raise tf.errors.AlreadyExistsError(None, None, "Another profiler is running.")

  monkeypatch.setattr(tf.profiler.experimental, "start", start)
  profile, said = built(window=(3, 9))
  assert run(profile) == [3, 4, 8, 9, 12]
  assert recorder.log == []
  assert len(said) == 1 and said[0].startswith("a profile could not be begun: Another profiler is running.")


def test_a_profile_that_cannot_be_written_does_not_end_the_run(recorder, monkeypatch):
  def stop():
    raise OSError("No space left on device")

  monkeypatch.setattr(tf.profiler.experimental, "stop", stop)
  profile, said = built(window=(3, 9))
  assert run(profile) == [3, 4, 8, 9, 12]
  assert said == ["a profile could not be kept: No space left on device"]


def test_after_a_failure_another_request_tries_again(recorder, monkeypatch):
  works, start = [False, True], tf.profiler.experimental.start

  def start_at_last(folder):
    if not works.pop(0):
      raise RuntimeError("not now")
    start(folder)

  monkeypatch.setattr(tf.profiler.experimental, "start", start_at_last)
  asked = iter([2, 0, 0, 3, 0, 0])
  profile, said = built(request=lambda: next(asked))
  assert run(profile) == [2, 4, 8, 11, 12]
  assert recorder.log == [("start", "profile"), traced(8), "stop"]
  assert said[0] == "a profile could not be begun: not now"


def test_a_recording_ends_with_the_run_and_only_once(recorder):
  profile, _ = built(window=(3, 9))
  profile.stops(3)
  with profile.recorded(3):
    pass
  profile.end()
  profile.end()
  assert recorder.log == [("start", "profile"), traced(3), "stop"]
