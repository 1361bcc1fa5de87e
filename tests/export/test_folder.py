"""A folder that is whole or absent."""

import os

import pytest
import tensorflow as tf

from official_trainer.errors import NotWritten
from official_trainer.export.folder import new_folder


@pytest.fixture(params=["local", "ram"])
def target(request, tmp_path):
  folder = str(tmp_path) if request.param == "local" else f"ram://folder-{tmp_path.name}"
  return f"{folder}/export/5"


def fill(target, text):
  with new_folder(target) as folder:
    with tf.io.gfile.GFile(os.path.join(folder, "a"), "w") as file:
      file.write(text)
    yield_point = (tf.io.gfile.exists(target), os.path.dirname(folder) == os.path.dirname(target))
  return yield_point


def read(target):
  with tf.io.gfile.GFile(os.path.join(target, "a")) as file:
    return file.read()


def beside(target):
  return [name.rstrip("/") for name in tf.io.gfile.listdir(os.path.dirname(target))]


def test_a_folder_appears_when_it_is_done(target):
  assert fill(target, "one") == (False, True)
  assert read(target) == "one"
  assert beside(target) == ["5"]


def test_a_folder_that_is_there_is_replaced_when_the_new_one_is_done(target):
  fill(target, "one")
  assert fill(target, "two") == (True, True)
  assert read(target) == "two"
  assert beside(target) == ["5"]


def test_an_error_leaves_the_old_folder_and_nothing_of_the_new_one(target):
  fill(target, "one")
  with pytest.raises(KeyError), new_folder(target) as folder:
    tf.io.gfile.makedirs(os.path.join(folder, "inner"))
    raise KeyError
  assert read(target) == "one"
  assert beside(target) == ["5"]


def test_what_a_killed_process_left_behind_is_removed_and_other_folders_stay(target):
  for name in (".5.tmp-123", ".5.tmp-former-9", ".55.tmp-1", "6"):
    tf.io.gfile.makedirs(os.path.join(os.path.dirname(target), name))
  fill(target, "one")
  assert sorted(beside(target)) == [".55.tmp-1", "5", "6"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / "file").write_text("x")
  with pytest.raises(NotWritten, match=f"{tmp_path}/file/5 could not be written"), new_folder(f"{tmp_path}/file/5"):
    pass
