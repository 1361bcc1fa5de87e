import signal

import pytest

from official_trainer.distribute.coordinator_note import CoordinatorNote
from official_trainer.distribute.server import CoordinatorWatch
from official_trainer.errors import ConfigError, ExitCode

OLD = CoordinatorNote(start="old", code=0)
RUNS = CoordinatorNote(start="new")


class World:
  """What a server sees: by second, the note that is there and whether the coordinator answers."""

  def __init__(self, before, script, *, at=None):
    self.now, self.note, self.is_there, self.script, self.at = 0.0, before, False, dict(script), at or {}
    self.watch = CoordinatorWatch(
      read=lambda: self.note,
      answers=lambda: self.is_there,
      address="chief:1",
      timeout_secs=60.0,
      grace_secs=5.0,
      clock=lambda: self.now,
      sleep=self.sleep,
    )

  def sleep(self, secs):
    self.now += 1.0
    self.note, self.is_there = self.script.get(self.now, (self.note, self.is_there))
    if self.now in self.at:
      self.at[self.now](self.watch)


@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.RESTART, ExitCode.DIVERGED])
def test_a_server_ends_with_the_code_of_the_coordinator_once_that_is_gone(code):
  ended = RUNS.ended(code)
  world = World(OLD, {2: (RUNS, True), 9: (ended, True), 11: (ended, False)})
  assert world.watch.wait() == code
  assert world.now == 11


def test_a_coordinator_whose_process_lives_on_is_not_waited_for():
  world = World(None, {2: (RUNS, True), 9: (RUNS.ended(ExitCode.DONE), True)})
  assert world.watch.wait() == ExitCode.DONE
  assert 19 <= world.now <= 21


def test_the_note_of_an_earlier_start_says_nothing():
  world = World(OLD, {1: (OLD, True), 100: (RUNS, True), 101: (RUNS.ended(ExitCode.DONE), False)})
  assert world.watch.wait() == ExitCode.DONE
  assert world.now == 101


def test_a_server_that_was_started_again_hears_of_the_end_of_the_same_start():
  world = World(RUNS, {1: (RUNS, True), 5: (RUNS.ended(ExitCode.DONE), False)})
  assert world.watch.wait() == ExitCode.DONE


def test_a_coordinator_that_was_killed_leaves_no_server_behind():
  world = World(None, {2: (RUNS, True), 20: (RUNS, False)})
  assert world.watch.wait() == ExitCode.RESTART
  assert 29 <= world.now <= 31


def test_a_coordinator_that_never_comes_is_an_error_with_its_address():
  with pytest.raises(ConfigError, match=r"the coordinator \(chief:1\): no answer within 60 s"):
    World(OLD, {}).watch.wait()


def test_a_server_that_is_asked_to_end_serves_on_while_the_coordinator_may_save():
  asked = {3.0: lambda watch: watch.asked(signal.SIGTERM)}
  world = World(None, {1: (RUNS, True), 6: (RUNS.ended(ExitCode.RESTART), False)}, at=asked)
  assert world.watch.wait() == ExitCode.RESTART
  assert world.now == 6
  alone = World(None, {1: (RUNS, True)}, at=asked)
  assert alone.watch.wait() == ExitCode.RESTART
  assert alone.now == 8


def test_a_second_signal_ends_a_server_at_once():
  def twice(watch):
    watch.asked(signal.SIGINT)
    watch.asked(signal.SIGINT)

  world = World(None, {1: (RUNS, True)}, at={3.0: twice})
  assert world.watch.wait() == ExitCode.INTERRUPTED
  assert world.now == 3
