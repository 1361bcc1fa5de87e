import pytest

from official_trainer.inner_loop.closure_size import ClosureSize


class Calls:
  """Calls that take `step_secs` a step and `call_secs` each, on a clock of their own; `left` steps remain."""

  def __init__(self, *, step_secs=0.0, call_secs=0.0, left=10_000, first_secs=0.0):
    self.now, self.sizes = 0.0, []
    self.step_secs, self.call_secs, self.left, self.first_secs = step_secs, call_secs, left, first_secs

  def clock(self):
    return self.now

  def run(self, size):
    if size > self.left:
      return False
    self.left -= size
    self.sizes.append(size)
    self.now += size * self.step_secs + self.call_secs + (self.first_secs if len(self.sizes) <= 2 else 0)
    return True


def measured(calls, *, most=1000, num_workers=2):
  size, told = ClosureSize(None, most=most, num_workers=num_workers, clock=calls.clock), []
  size.remember(None, told.append)
  size.measure(calls.run)
  return size, told


@pytest.mark.parametrize(("step_secs", "steps"), [(0.02, 5), (0.25, 1), (0.001, 100)])
def test_a_call_takes_about_a_tenth_of_a_second(step_secs, steps):
  size, told = measured(Calls(step_secs=step_secs))
  assert size.steps == steps
  assert told == [steps]


def test_what_a_call_costs_by_itself_is_part_of_its_time():
  assert measured(Calls(step_secs=0.001, call_secs=0.02))[0].steps < 100


def test_the_first_calls_of_workers_which_prepare_the_function_do_not_count():
  assert measured(Calls(step_secs=0.02, first_secs=5.0))[0].steps == 5


def test_a_loop_keeps_enough_calls_for_all_workers():
  size, told = measured(Calls(step_secs=0.0001), most=12)
  assert size.steps == told[0] == 12
  assert measured(Calls(step_secs=0.0001), most=0)[0].steps == 1


def test_without_enough_steps_nothing_is_settled():
  size, told = measured(Calls(step_secs=0.001, left=3))
  assert (size.steps, size.is_known, told) == (1, False, [])


def test_what_was_measured_before_is_used_again_but_not_over_the_configs():
  size = ClosureSize(None, most=10, num_workers=2)
  size.remember(7, pytest.fail)
  assert (size.steps, size.is_known) == (7, True)
  size = ClosureSize(3, most=1, num_workers=2)
  size.remember(7, pytest.fail)
  assert (size.steps, size.is_known) == (3, True)
