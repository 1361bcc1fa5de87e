import os

import pytest
import tensorflow as tf

from official_trainer.checkpoint.foreign import is_foreign, newest_foreign


def write(folder, name, **more):
  checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0), **more)
  return checkpoint.write(os.path.join(str(folder), name))


def test_a_checkpoint_without_our_root_is_foreign(tmp_path):
  assert is_foreign(write(tmp_path, "ckpt-1"))
  assert not is_foreign(write(tmp_path, "ckpt-2", host=tf.Variable("")))


def test_what_cannot_be_read_is_nobodys(tmp_path):
  prefix = write(tmp_path, "ckpt-1")
  assert not is_foreign(f"{prefix}0")
  (tmp_path / "ckpt-1.index").write_bytes(b"")
  assert not is_foreign(prefix)


@pytest.mark.parametrize("remote", [False, True])
def test_the_newest_is_the_one_of_the_highest_number(tmp_path, remote):
  folder = f"ram://foreign-{tmp_path.name}" if remote else str(tmp_path)
  for name in ("ckpt-9", "ckpt-10", "model.ckpt-100"):
    write(folder, name)
  assert newest_foreign(folder) == f"{folder}/model.ckpt-100"


def test_the_state_file_decides_where_there_is_one(tmp_path):
  for name in ("ckpt-9", "ckpt-10"):
    write(tmp_path, name)
  (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"', "utf-8")
  assert newest_foreign(str(tmp_path)) == str(tmp_path / "ckpt-9")


def test_unfinished_saves_of_ours_and_broken_files_are_passed_over(tmp_path):
  good = write(tmp_path, "ckpt-1")
  write(tmp_path, "ckpt-2", host=tf.Variable(""))
  (tmp_path / "ckpt-3.index").write_text("half", "utf-8")
  (tmp_path / "notes.index").write_text("mine", "utf-8")
  assert newest_foreign(str(tmp_path)) == good


def test_a_folder_without_any_has_none(tmp_path):
  assert newest_foreign(str(tmp_path)) is None
  assert newest_foreign(str(tmp_path / "nowhere")) is None
