import threading

from official_trainer.timing.phases import Phase
from official_trainer.timing.watchdog import Watchdog
from tests.timing.test_ledger import Clock


class Step:
  def __init__(self):
    self.value = 0
    self.batches = 0

  def __call__(self):
    return self.value, self.batches


def watchdog(clock, step=None, hang_secs=10.0, on_hang=None, **kwargs):
  return Watchdog(hang_secs, progress=step or Step(), on_hang=on_hang or (lambda *args: None), clock=clock, **kwargs)


def pass_time(clock, dog, secs):
  """Lets time pass as for a process that runs: it looks all the while."""
  for _ in range(secs):
    clock.passes(1)
    if (stuck := dog.stuck_for()) is not None:
      return stuck
  return None


def test_a_step_that_does_not_come_is_a_hang_and_one_that_comes_is_none():
  clock, step = Clock(), Step()
  dog = watchdog(clock, step)
  with dog.phase(Phase.TRAIN):
    for _ in range(5):
      assert pass_time(clock, dog, 9) is None
      step.value += 1
      dog.look_at_progress()
    assert pass_time(clock, dog, 9 * 20) is None  # 20 times what a step has taken.
    assert pass_time(clock, dog, 1) == (Phase.TRAIN, 181.0)


def test_the_time_of_the_config_is_the_least():
  clock, dog = (made := Clock()), watchdog(made)
  with dog.phase(Phase.TRAIN):
    dog.look_at_progress()
    assert pass_time(clock, dog, 10) is None
    assert pass_time(clock, dog, 1) == (Phase.TRAIN, 11.0)


def test_what_is_not_training_may_take_six_times_as_long():
  clock, dog = (made := Clock()), watchdog(made)
  with dog.phase(Phase.COMPILE):
    assert pass_time(clock, dog, 60) is None
    assert pass_time(clock, dog, 1) == (Phase.COMPILE, 61.0)


def test_an_evaluation_may_take_twenty_times_as_long_as_the_longest_before():
  clock, dog = (made := Clock()), watchdog(made)
  with dog.phase(Phase.EVAL):
    assert pass_time(clock, dog, 50) is None
  with dog.phase(Phase.EVAL):
    assert pass_time(clock, dog, 1000) is None
    assert pass_time(clock, dog, 1) == (Phase.EVAL, 1001.0)


def test_a_first_evaluation_may_take_as_long_as_it_likes_while_its_batches_come():
  clock, step = Clock(), Step()
  dog = watchdog(clock, step)
  with dog.phase(Phase.EVAL):
    for _ in range(100):
      assert pass_time(clock, dog, 50) is None
      step.batches += 1
      dog.look_at_progress()
    assert pass_time(clock, dog, 61) == (Phase.EVAL, 61.0)


def test_a_phase_that_may_take_as_long_as_it_likes_is_not_watched():
  clock = Clock()
  dog = watchdog(clock, unwatched=[Phase.COMPILE])
  with dog.phase(Phase.OTHER):
    with dog.phase(Phase.COMPILE):
      assert pass_time(clock, dog, 10_000) is None
    assert pass_time(clock, dog, 61) == (Phase.OTHER, 61.0)


def test_a_process_that_was_stopped_and_continued_does_not_hang():
  clock, dog = (made := Clock()), watchdog(made)
  with dog.phase(Phase.TRAIN):
    assert pass_time(clock, dog, 5) is None
    clock.passes(10_000)  # Nobody looked in all that time.
    assert pass_time(clock, dog, 10) is None
    assert pass_time(clock, dog, 2) == (Phase.TRAIN, 11.0)


def test_the_end_of_an_inner_phase_is_a_sign_of_life_of_the_outer_one():
  clock, dog = (made := Clock()), watchdog(made)
  with dog.phase(Phase.OTHER):
    for _ in range(10):
      assert pass_time(clock, dog, 50) is None
      with dog.phase(Phase.SAVE):
        assert pass_time(clock, dog, 50) is None
    assert pass_time(clock, dog, 61) == (Phase.OTHER, 61.0)
  assert pass_time(clock, dog, 1000) is None  # Nobody said what is done.


def test_a_hang_is_told_once_with_the_last_step_that_was_seen():
  told, done = [], threading.Event()

  def on_hang(*args):
    told.append(args)
    done.set()

  clock, step = Clock(), Step()
  step.value = 7
  dog = watchdog(clock, step, hang_secs=0.1, on_hang=on_hang)
  with dog.watching(), dog.phase(Phase.TRAIN):
    dog.look_at_progress()
    while not done.wait(timeout=0.005):
      clock.passes(0.005)
  assert [(phase, step) for phase, _, step in told] == [(Phase.TRAIN, 7)]
  assert told[0][1] > 0.1
