import threading

from official_trainer.timing.phases import Phase
from official_trainer.timing.watchdog import Watchdog
from tests.timing.test_ledger import Clock


class Step:
  def __init__(self):
    self.value = 0

  def __call__(self):
    return self.value


def watchdog(clock, step=None, hang_secs=10.0, on_hang=None):
  return Watchdog(hang_secs, step=step or Step(), on_hang=on_hang or (lambda *args: None), clock=clock)


def test_a_step_that_does_not_come_is_a_hang_and_one_that_comes_is_none():
  clock, step = Clock(), Step()
  dog = watchdog(clock, step)
  with dog.phase(Phase.TRAIN):
    for _ in range(5):
      clock.passes(9)
      step.value += 1
      dog.look_at_step()
      assert dog.stuck_for() is None
    clock.passes(9 * 20)
    dog.look_at_step()
    assert dog.stuck_for() is None  # 20 times what a step has taken.
    clock.passes(1)
    assert dog.stuck_for() == (Phase.TRAIN, 181.0)


def test_the_time_of_the_config_is_the_least():
  clock, step = Clock(), Step()
  dog = watchdog(clock, step)
  with dog.phase(Phase.TRAIN):
    dog.look_at_step()
    clock.passes(10)
    assert dog.stuck_for() is None
    clock.passes(1)
    assert dog.stuck_for() == (Phase.TRAIN, 11.0)


def test_what_is_not_training_may_take_six_times_as_long():
  clock = Clock()
  dog = watchdog(clock)
  with dog.phase(Phase.COMPILE):
    clock.passes(60)
    assert dog.stuck_for() is None
    clock.passes(1)
    assert dog.stuck_for() == (Phase.COMPILE, 61.0)


def test_an_evaluation_may_take_twenty_times_as_long_as_the_longest_before():
  clock = Clock()
  dog = watchdog(clock)
  with dog.phase(Phase.EVAL):
    clock.passes(50)
  with dog.phase(Phase.EVAL):
    clock.passes(1000)
    assert dog.stuck_for() is None
    clock.passes(1)
    assert dog.stuck_for() == (Phase.EVAL, 1001.0)


def test_the_end_of_an_inner_phase_is_a_sign_of_life_of_the_outer_one():
  clock = Clock()
  dog = watchdog(clock)
  with dog.phase(Phase.OTHER):
    for _ in range(10):
      clock.passes(50)
      with dog.phase(Phase.SAVE):
        clock.passes(50)
      assert dog.stuck_for() is None
    clock.passes(61)
    assert dog.stuck_for() == (Phase.OTHER, 61.0)
  clock.passes(10**6)
  assert dog.stuck_for() is None  # Nobody said what is done.


def test_a_hang_is_told_once_with_the_last_step_that_was_seen():
  told, done = [], threading.Event()

  def on_hang(*args):
    told.append(args)
    done.set()

  clock, step = Clock(), Step()
  step.value = 7
  dog = watchdog(clock, step, hang_secs=0.02, on_hang=on_hang)
  with dog.watching(), dog.phase(Phase.TRAIN):
    dog.look_at_step()
    clock.passes(5)
    assert done.wait(timeout=60)
  assert told == [(Phase.TRAIN, 5.0, 7)]
