import math

import pytest

from official_trainer.actions.event import Event, LoopDiscarded
from official_trainer.actions.recover import CheckDivergence, Recover, divergence
from official_trainer.errors import TrainingDiverged


def event(loss, step=10, saves=True):
  return Event(step=step, start=step - 2, mode="train", output={}, metrics={}, loop_loss=loss, saves=saves)


def check(names=(), *, upper_bound=100.0, begin_steps=0):
  return CheckDivergence(lambda: list(names), upper_bound=upper_bound, begin_steps=begin_steps)


class Journal:
  """A roll-back that only notes what it was asked for."""

  def __init__(self, tried=()):
    self.texts = list(tried)
    self.notes = []

  def tried(self):
    return self.texts

  def window(self, start, end):
    return start + 100, end + 100

  def run(self, window, what, step):
    self.notes.append(("went back", window, what, step))
    return 4


def recover(journal, max_trials):
  return Recover(
    check(),
    max_trials=max_trials,
    roll_back=journal,
    report=lambda error: journal.notes.append(("reported", error.step, error.window)),
    warn=lambda text: journal.notes.append(("warned", text)),
  )


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("begin_steps", [0, 1000])
def test_a_loss_that_is_not_finite_is_a_divergence_at_any_step(loss, begin_steps):
  assert divergence(loss, 1, upper_bound=1.0, begin_steps=begin_steps) == (f"the training loss is {loss}")


def test_a_large_loss_is_a_divergence_from_the_step_that_the_config_says():
  def problem(loss, step):
    return divergence(loss, step, upper_bound=10.0, begin_steps=5)

  assert problem(11.0, 4) is None
  assert problem(11.0, 5) == "the training loss 11 is above trainer.loss_upper_bound (10)"
  assert problem(10.0, 5) is None
  assert problem(-1e9, 5) is None


def test_a_healthy_loop_passes():
  journal = Journal()
  recover(journal, 1)(event(1.0))
  recover(journal, 1)(event(None))
  assert journal.notes == []


def test_weights_that_are_not_finite_are_named():
  assert check(["a", "b"])(event(1.0)) == "2 variables are not finite: a, b"
  seven = check([str(index) for index in range(7)])
  assert seven(event(1.0)) == "7 variables are not finite: 0, 1, 2, 3, 4 and 2 more"


@pytest.mark.parametrize("every_loop", [False, True])
def test_weights_are_looked_at_where_something_is_saved_or_after_every_loop(every_loop):
  looked = []
  action = CheckDivergence(lambda: looked.append(1) or [], upper_bound=1.0, begin_steps=0, every_loop=every_loop)
  action(event(0.5, saves=False))
  assert looked == ([1] if every_loop else [])
  action(event(0.5, saves=True))
  assert looked == ([1, 1] if every_loop else [1])


def test_a_diverged_run_goes_back_and_the_loop_is_discarded():
  journal = Journal(tried=["once"])
  with pytest.raises(LoopDiscarded):
    recover(journal, 2)(event(math.nan))
  # The report is made while the state is still the diverged one.
  assert journal.notes == [
    ("reported", 10, (108, 110)),
    ("went back", (108, 110), "the training loss is nan", 10),
    (
      "warned",
      "diverged between steps 8 and 10: the training loss is nan. Going back to step 4 and leaving out"
      " batches 108 to 109 (attempt 2 of 2).",
    ),
  ]


@pytest.mark.parametrize(("max_trials", "tried"), [(0, []), (1, ["the first time"])])
def test_a_run_that_may_not_go_back_ends_with_step_window_and_what_was_tried(max_trials, tried):
  journal = Journal(tried=tried)
  with pytest.raises(TrainingDiverged) as raised:
    recover(journal, max_trials)(event(math.nan))
  error = raised.value
  assert (error.step, error.start, error.window, error.tried) == (10, 8, (108, 110), tuple(tried))
  assert str(error).splitlines() == [
    "at step 10: the training loss is nan. It happened after step 8; nothing of it was saved.",
    *(f"  tried: {text}" for text in tried),
    "Started again, the run goes on from the last good checkpoint. To step over these batches add",
    "[108, 110] to task.train_data.skip_steps; trainer.recovery_max_trials makes the run do so by itself.",
  ]
  assert journal.notes == []
