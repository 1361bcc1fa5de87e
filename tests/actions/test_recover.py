import math

import pytest

from official_trainer.actions.event import Event
from official_trainer.actions.recover import CheckDivergence, divergence
from official_trainer.errors import TrainingDiverged


def event(loss, step=10, saves=True):
  metrics = {} if loss is None else {"training_loss": loss}
  return Event(step=step, mode="train", output={}, metrics=metrics, saves=saves)


def check(names=(), *, upper_bound=100.0, begin_steps=0):
  return CheckDivergence(lambda: list(names), upper_bound=upper_bound, begin_steps=begin_steps)


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
  check()(event(1.0))
  check()(event(None))


def test_a_diverged_loss_ends_the_run_with_its_step_and_what_to_do():
  with pytest.raises(TrainingDiverged) as raised:
    check()(event(math.nan, step=12))
  assert raised.value.step == 12
  assert str(raised.value) == (
    "at step 12: the training loss is nan; nothing was saved at this step."
    " Restarting continues from the last good checkpoint."
  )


def test_weights_that_are_not_finite_are_named_before_they_are_saved():
  with pytest.raises(TrainingDiverged, match="2 variables are not finite: a, b;"):
    check(["a", "b"])(event(1.0))
  with pytest.raises(TrainingDiverged, match="7 variables are not finite: 0, 1, 2, 3, 4 and 2 more"):
    check([str(index) for index in range(7)])(event(1.0))


def test_weights_are_looked_at_only_where_something_is_saved():
  looked = []
  action = CheckDivergence(lambda: looked.append(1) or [], upper_bound=1.0, begin_steps=0)
  action(event(0.5, saves=False))
  assert looked == []
  action(event(0.5, saves=True))
  assert looked == [1]
