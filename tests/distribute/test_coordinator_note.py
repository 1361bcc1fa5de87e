import pytest

from official_trainer.distribute.coordinator_note import load_note, noted_for_servers
from official_trainer.errors import ConfigError, ExitCode, Preempted


def test_servers_hear_that_the_coordinator_runs_and_that_it_is_done(tmp_path):
  with noted_for_servers(str(tmp_path)):
    running = load_note(str(tmp_path))
    assert running.code is None
  ended = load_note(str(tmp_path))
  assert (ended.start, ended.code) == (running.start, 0)


@pytest.mark.parametrize(
  ("error", "code"),
  [
    (Preempted(4, "SIGTERM", ExitCode.RESTART), 42),
    (Preempted(4, "SIGINT", ExitCode.INTERRUPTED), 130),
    (ConfigError.of("a", "b"), 2),
    (RuntimeError(), 1),
  ],
)
def test_servers_hear_with_what_it_ended(tmp_path, error, code):
  with pytest.raises(type(error)), noted_for_servers(str(tmp_path)):
    raise error
  assert load_note(str(tmp_path)).code == code


def test_each_start_has_a_note_of_its_own(tmp_path):
  with noted_for_servers(str(tmp_path)):
    first = load_note(str(tmp_path))
  with noted_for_servers(str(tmp_path)):
    assert load_note(str(tmp_path)).start != first.start


def test_a_note_that_cannot_be_read_is_none(tmp_path):
  assert load_note(str(tmp_path)) is None
  (tmp_path / "coordinator.json").write_text("{")
  assert load_note(str(tmp_path)) is None
