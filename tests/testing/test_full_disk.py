"""A disk that is full for the writes that are meant, and for no others."""

import os
import resource
import tempfile

import pytest
import tensorflow as tf

from official_trainer.testing import faults

TEXT = b"x" * 100


def write(path, content=TEXT, mode="wb"):
  with tf.io.gfile.GFile(str(path), mode) as file:
    file.write(content)


def size(path):
  return os.path.getsize(path)


def limit():
  return resource.getrlimit(resource.RLIMIT_FSIZE)


def test_every_write_of_the_process_fails_in_python_and_in_cpp(tmp_path):
  before = limit()
  checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
  with faults.full_disk():
    with pytest.raises(OSError, match="File too large"):
      (tmp_path / "python").write_bytes(TEXT)
    with pytest.raises(tf.errors.OpError, match="cpp; File too large"):
      write(tmp_path / "cpp")
    with pytest.raises(tf.errors.OpError, match="File too large"):
      checkpoint.write(str(tmp_path / "ckpt-1"))
  assert limit() == before
  write(tmp_path / "cpp")
  assert size(tmp_path / "cpp") == 100


def test_some_room_can_be_left(tmp_path):
  with faults.full_disk(free_bytes=60):
    (tmp_path / "short").write_bytes(TEXT[:60])
    with pytest.raises(OSError, match="File too large"):
      (tmp_path / "long").write_bytes(TEXT)


def test_only_the_writes_to_matching_files_fail(tmp_path):
  with faults.full_disk("*.jsonl") as fault:
    write(tmp_path / "run.json")
    with pytest.raises(tf.errors.OutOfRangeError, match="history.jsonl; File too large"):
      write(tmp_path / "history.jsonl")
    (tmp_path / "other.txt").write_bytes(TEXT)
  assert fault.happened == 1
  assert (size(tmp_path / "run.json"), size(tmp_path / "history.jsonl")) == (100, 0)


def test_a_file_under_a_temporary_name_is_known_by_its_final_one(tmp_path):
  with faults.full_disk("run.json"), pytest.raises(tf.errors.OutOfRangeError):
    write(tmp_path / f".run.json.tmp-{os.getpid()}")


def test_an_appended_line_may_be_cut_off_in_the_middle(tmp_path):
  write(tmp_path / "history.jsonl")
  with faults.full_disk("history.jsonl", free_bytes=7), pytest.raises(tf.errors.OutOfRangeError):
    write(tmp_path / "history.jsonl", mode="ab")
  assert size(tmp_path / "history.jsonl") == 107


def test_writes_go_well_before_and_after_those_that_fail(tmp_path):
  with faults.full_disk("a", after=2, times=1) as fault:
    write(tmp_path / "a")
    write(tmp_path / "a")
    with pytest.raises(tf.errors.OutOfRangeError):
      write(tmp_path / "a")
    write(tmp_path / "a")
  assert fault.happened == 1
  assert size(tmp_path / "a") == 100


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_fails_as_a_whole(tmp_path, asynchronous):
  checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
  options = tf.train.CheckpointOptions(enable_async=asynchronous)
  with faults.full_disk("ckpt-2.data") as fault:
    checkpoint.write(str(tmp_path / "ckpt-1"), options)
    try:
      checkpoint.write(str(tmp_path / "ckpt-2"), options)
      checkpoint.sync()
      checkpoint._async_checkpointer_impl._check_async_thread_error()
    except tf.errors.OutOfRangeError as error:
      assert "ckpt-2" in str(error)
    checkpoint.write(str(tmp_path / "ckpt-3"), options)
    checkpoint.sync()
  assert fault.happened == 1
  names = [f"ckpt-{step}.{part}" for step in (1, 3) for part in ("data-00000-of-00001", "index")]
  assert sorted(name for name in os.listdir(tmp_path) if "_temp" not in name) == names


def test_a_disk_that_was_not_full_for_anything_is_an_error(tmp_path):
  with pytest.raises(faults.FaultDidNotHappen, match=r"full_disk\('histroy.jsonl', after=0\) did not happen"):
    with faults.full_disk("histroy.jsonl"):
      write(tmp_path / "history.jsonl")
  with pytest.raises(faults.FaultDidNotHappen, match="not a local one"), faults.full_disk("a"):
    write("ram://full-disk/a")


def test_afterwards_files_are_written_as_before(tmp_path):
  methods = [vars(tf.io.gfile.GFile).get(name) for name in ("write", "flush", "close")]
  with pytest.raises(tf.errors.OutOfRangeError), faults.full_disk("a"):
    write(tmp_path / "a")
  assert [vars(tf.io.gfile.GFile).get(name) for name in ("write", "flush", "close")] == methods
  assert tempfile.TemporaryFile().write(TEXT) == 100
