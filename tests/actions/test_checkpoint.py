import pytest

from official_trainer.actions.checkpoint import SaveCheckpoint
from official_trainer.actions.event import Event
from official_trainer.checkpoint.store import CheckpointStore
from tests import tiny


@pytest.fixture(scope="module")
def state():
  return tiny.build("unused").state


@pytest.fixture
def store(tmp_path, state):
  return CheckpointStore(str(tmp_path), state.checkpoint, asynchronous=False)


def event(step, saves=True):
  return Event(step=step, mode="train", output={}, metrics={}, saves=saves)


def at(state, step):
  state.global_step.assign(step)
  return step


def test_a_checkpoint_is_saved_where_one_is_due(state, store):
  save = SaveCheckpoint(state, store)
  save(event(at(state, 2), saves=False))
  assert store.steps() == []
  save(event(at(state, 4)))
  assert store.steps() == [4]


def test_a_step_that_is_on_disk_is_not_saved_again(state, store, monkeypatch):
  save = SaveCheckpoint(state, store)
  save(event(at(state, 4)))
  monkeypatch.setattr(store, "save", lambda step: pytest.fail("saved twice"))
  save(event(4))


def test_what_is_not_finite_is_not_saved_and_said(state, store, caplog):
  names = ["dense/kernel"]
  save = SaveCheckpoint(state, store, non_finite_names=lambda: list(names))
  save(event(at(state, 4)))
  assert store.steps() == []
  assert "Step 4 is not saved: 1 variables are not finite (dense/kernel)" in caplog.text
  names.clear()
  save(event(at(state, 6)))
  assert store.steps() == [6]
