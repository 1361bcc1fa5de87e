import os

import pytest
import tensorflow as tf

from official_trainer.checkpoint.state_file import read_state_file, write_state_file


@pytest.mark.parametrize("name", ["ckpt-4", 'a "quoted" name', "größe-4"])
def test_tensorflow_finds_the_newest_checkpoint_through_it(tmp_path, name):
  prefix = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / name))
  write_state_file(str(tmp_path), ["ckpt-2", name])
  assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
  state = tf.train.get_checkpoint_state(str(tmp_path))
  paths = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
  assert paths == ["ckpt-2", name]


def test_it_is_replaced_and_leaves_nothing_beside_it(tmp_path):
  write_state_file(str(tmp_path), ["ckpt-1"])
  write_state_file(str(tmp_path), ["ckpt-2"])
  assert os.listdir(tmp_path) == ["checkpoint"]
  assert "ckpt-1" not in (tmp_path / "checkpoint").read_text("utf-8")


def test_reading_gives_the_newest_that_is_there_or_none(tmp_path):
  assert read_state_file(str(tmp_path)) is None
  write_state_file(str(tmp_path), ["ckpt-4"])
  assert read_state_file(str(tmp_path)) is None  # Its files are gone.
  prefix = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "ckpt-4"))
  assert read_state_file(str(tmp_path)) == prefix


@pytest.mark.parametrize("text", ["", "model_checkpoint_path", "\0\0\0"])
def test_a_file_that_cannot_be_read_names_nothing_aloud(tmp_path, text, caplog):
  (tmp_path / "checkpoint").write_text(text, "utf-8")
  assert read_state_file(str(tmp_path)) is None
  assert any(record.levelname == "WARNING" for record in caplog.records)
