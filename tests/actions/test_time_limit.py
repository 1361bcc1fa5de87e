import types

import pytest

from official_trainer.actions.event import Event
from official_trainer.actions.time_limit import TimeLimit
from official_trainer.state import HostState


def state(step=2, spent=None):
  host = HostState()
  host.spent_secs = spent
  return types.SimpleNamespace(host=host, step=step)


def decided(made, limit, elapsed, **more):
  TimeLimit(made, limit, lambda: elapsed, train_steps=4, **more).decide()
  return made.host.finished, made.host.spent_secs


def test_a_run_is_done_once_its_time_is_up():
  assert decided(state(), 10.0, 9.0) == (None, None)
  assert decided(state(), 10.0, 10.0) == ("time is up: trainer.max_wall_secs is 10", 10.0)
  made = state()
  TimeLimit(made, 10.0, lambda: 11.0, train_steps=4)(Event(step=2, mode="train", output={}, metrics={}))
  assert made.host.finished


def test_that_the_time_was_up_is_known_although_what_was_measured_is_lost():
  assert decided(state(spent=10.0), 10.0, 0.0) == ("time is up: trainer.max_wall_secs is 10", 10.0)


@pytest.mark.parametrize("limit", [None, 20.0])
def test_a_limit_that_was_raised_or_taken_away_lets_the_run_go_on(limit):
  assert decided(state(spent=10.0), limit, 11.0) == (None, None)


def test_a_run_that_did_all_its_steps_was_not_cut_short():
  assert decided(state(step=4), 10.0, 11.0) == (None, None)


def test_the_clock_of_the_chief_counts():
  assert decided(state(), 10.0, 11.0, from_chief=lambda value: 0) == (None, None)
  assert decided(state(), 10.0, 0.0, from_chief=lambda value: 1)[1] == 10.0
