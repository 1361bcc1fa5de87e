import types

import pytest

from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.actions.record import RecordHistory
from official_trainer.state import HostState


@pytest.fixture
def host():
  return HostState()


@pytest.fixture
def record(host):
  return RecordHistory(types.SimpleNamespace(host=host), lambda: {"training_loss": "sums"})


def event(step, mode, *, reports=True):
  return Event(step=step, mode=mode, output={}, metrics={"loss": 0.5}, reports=reports)


def test_a_report_becomes_a_row_and_closes_the_window(record, host):
  host.window = {"training_loss": "sums"}
  record(event(4, TRAIN))
  assert host.history.rows == ((4, "train", {"loss": 0.5}),)
  assert host.window is None


def test_a_loop_that_ends_inside_a_report_keeps_its_sums_and_makes_no_row(record, host):
  record(event(5, TRAIN, reports=False))
  assert len(host.history) == 0
  assert host.window == {"training_loss": "sums"}


def test_an_evaluation_is_a_row_notes_its_step_and_leaves_the_window_open(record, host):
  record(event(5, TRAIN, reports=False))
  record(event(5, VALIDATION))
  assert host.history.last("validation").step == 5
  assert host.last_eval_step == 5
  assert host.window == {"training_loss": "sums"}


def test_an_evaluation_repeated_at_a_step_makes_no_second_row(record, host):
  record(event(5, VALIDATION))
  record(event(5, VALIDATION, reports=False))
  assert len(host.history) == 1
