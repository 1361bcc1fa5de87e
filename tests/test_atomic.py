import os
import resource
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from official_trainer import atomic


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
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))  # As a disk that is full after 1,000 bytes.
  try:
    with pytest.raises(tf.errors.OpError):
      atomic.write_bytes(path, b"x" * 1_000_000)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, ignored)
  assert path.read_text() == "old"
  assert os.listdir(tmp_path) == ["history.jsonl"]


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path):
  (tmp_path / "taken" / "inside").mkdir(parents=True)
  with pytest.raises(tf.errors.OpError):
    atomic.write_text(tmp_path / "taken", "x")
  assert os.listdir(tmp_path) == ["taken"]


def test_what_is_not_text_is_refused_before_anything_is_touched(tmp_path):
  with pytest.raises(AttributeError):
    atomic.write_text(tmp_path / "deep" / "a", None)
  assert os.listdir(tmp_path) == []


_WRITE_FOR_EVER = """
import itertools, sys
from official_trainer import atomic
for index in itertools.count():
  atomic.write_text(sys.argv[1], f"{index}\\n" * (1 + index * 997 % 20_000))
  print(flush=True)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_writing_the_file_is_whole(tmp_path):
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
