import errno
import gzip
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from official_trainer import atomic
from official_trainer.errors import NotWritten
from official_trainer.testing import faults


def read(path):
  with tf.io.gfile.GFile(str(path), "rb") as file:
    return file.read()


@pytest.mark.parametrize("remote", [False, True])
def test_text_is_written_and_replaced_and_nothing_else_stays(tmp_path, remote):
  folder = "ram://atomic-replaced" if remote else str(tmp_path)
  path = f"{folder}/deep/er/params.yaml"
  atomic.write_text(path, "a: ä\n")
  assert read(path) == "a: ä\n".encode()
  atomic.write_text(path, "b")
  assert read(path) == b"b"
  assert tf.io.gfile.listdir(f"{folder}/deep/er") == ["params.yaml"]


def test_a_compressed_text_comes_back_and_equal_texts_are_equal_files(tmp_path):
  text = "a: ä\n" * 9
  for name in ("one.gz", "two.gz"):
    atomic.write_compressed_text(tmp_path / name, text)
  assert gzip.decompress((tmp_path / "one.gz").read_bytes()).decode("utf-8") == text
  assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_bytes_are_written_as_they_are(tmp_path):
  content = bytes(range(256)) * 1_000
  atomic.write_bytes(tmp_path / "picture.png", content)
  assert (tmp_path / "picture.png").read_bytes() == content


def test_an_empty_file_is_a_file(tmp_path):
  atomic.write_text(tmp_path / "empty", "")
  assert (tmp_path / "empty").read_bytes() == b""


def test_a_name_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  atomic.write_text("here.txt", "x")
  assert os.listdir(tmp_path) == ["here.txt"]


def test_a_file_at_the_root_of_a_remote_file_system_makes_no_local_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  atomic.write_text("ram://atomic-root.txt", "x")
  assert read("ram://atomic-root.txt") == b"x"
  assert os.listdir(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path):
  path = tmp_path / "history.jsonl"
  atomic.write_text(path, "old")
  with faults.full_disk(free_bytes=1_000), pytest.raises(NotWritten, match="history.jsonl could not be written: File"):
    atomic.write_bytes(path, b"x" * 1_000_000)
  assert path.read_text() == "old"
  assert os.listdir(tmp_path) == ["history.jsonl"]


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path):
  (tmp_path / "taken" / "inside").mkdir(parents=True)
  with pytest.raises(NotWritten, match="taken could not be written: Is a directory"):
    atomic.write_text(tmp_path / "taken", "x")
  assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize(
  ("error", "reason"),
  [
    (OSError(errno.ENOSPC, "No space left on device", "a"), "No space left on device"),
    (OSError("no number"), "no number"),
    (tf.errors.ResourceExhaustedError(None, None, "runs/a;b/x.tmp; Quota exceeded"), "Quota exceeded"),
    (
      tf.errors.OutOfRangeError(None, None, "{{function_node a}} runs/part-0; File too large [Op:SaveV2]"),
      "File too large",
    ),
    (tf.errors.UnavailableError(None, None, "the store is gone\ntrace"), "the store is gone"),
  ],
)
def test_the_words_of_the_file_system_are_kept_and_the_file_is_named(error, reason):
  with pytest.raises(NotWritten) as found, atomic.writing("runs/a/x"):
    raise error
  assert (found.value.path, found.value.reason) == ("runs/a/x", reason)
  assert str(found.value) == f"runs/a/x could not be written: {reason}."
  assert found.value.__cause__ is error


def test_other_errors_and_those_with_a_name_pass():
  with pytest.raises(ZeroDivisionError), atomic.writing("a"):
    raise ZeroDivisionError
  with pytest.raises(NotWritten, match="^b could not"), atomic.writing("a"):
    raise NotWritten("b", "full")


@pytest.mark.parametrize("remote", [False, True])
def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path, remote):
  folder = "ram://atomic-leftovers" if remote else str(tmp_path)
  for name in (".run.json.tmp-12", ".history.jsonl.tmp-9", "run.json", ".hidden", "a.tmp-1", ".run.json.tmp-x"):
    atomic.write_text(f"{folder}/{name}", "x")
  atomic.remove_leftovers(folder)
  assert sorted(tf.io.gfile.listdir(folder)) == [".hidden", ".run.json.tmp-x", "a.tmp-1", "run.json"]
  atomic.remove_leftovers(f"{folder}/nowhere")


def test_what_is_not_text_is_refused_before_anything_is_touched(tmp_path):
  with pytest.raises(AttributeError):
    atomic.write_text(tmp_path / "deep" / "a", None)
  assert os.listdir(tmp_path) == []


_WRITE_FOR_EVER = """
import itertools, sys
from official_trainer import atomic
from official_trainer.errors import NotWritten
from official_trainer.testing import faults
for index in itertools.count():
  atomic.write_text(sys.argv[1], f"{index}\\n" * (1 + index * 997 % 20_000))
  print(flush=True)
"""


@pytest.mark.slow
def test_t53_killed_in_the_middle_of_writing_the_file_is_whole(tmp_path):
  path = tmp_path / "record.txt"
  child = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
  try:
    for _ in range(200):
      assert child.stdout.readline() == "\n"
      assert_whole(path)
  finally:
    child.kill()
    child.wait()
    child.stdout.close()
  assert_whole(path)


def assert_whole(path):
  lines = path.read_text().splitlines()
  assert set(lines) == {lines[0]}
  assert len(lines) == 1 + int(lines[0]) * 997 % 20_000
