import tensorflow as tf

from official_trainer.inspect.request_file import RequestFile


def test_a_file_is_taken_up_once_and_removed(tmp_path):
  warnings = []
  request = RequestFile(str(tmp_path / "ASK"), looks=True, warn=warnings.append)
  assert not request.taken()
  (tmp_path / "ASK").touch()
  assert request.taken()
  assert not (tmp_path / "ASK").exists()
  assert not request.taken() and warnings == []


def test_all_processes_hear_of_what_the_chief_found(tmp_path):
  (tmp_path / "ASK").touch()
  told = []

  def from_chief(value):
    told.append(value)
    return told[0]

  processes = [
    RequestFile(str(tmp_path / "ASK"), looks=looks, warn=print, from_chief=from_chief) for looks in (True, False)
  ]
  assert [process.taken() for process in processes] == [True, True]
  assert told == [1, 0]


def test_a_file_that_cannot_be_removed_is_warned_about_and_not_looked_for_again(tmp_path):
  (tmp_path / "ASK" / "inside").mkdir(parents=True)
  warnings = []
  request = RequestFile(str(tmp_path / "ASK"), looks=True, warn=warnings.append)
  assert not request.taken()
  assert not request.taken()
  assert len(warnings) == 1 and "cannot be removed" in warnings[0]
  assert tf.io.gfile.exists(str(tmp_path / "ASK"))
