import os

import pytest
import tensorflow as tf

from official_trainer.testing import damage, faults


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "run" / "train").mkdir(parents=True)
  (tmp_path / "run" / "a").write_text("old")
  return tmp_path / "run"


def try_everything(folder):
  """Returns what can be done in a folder."""
  done = []
  attempts = {
    "make": lambda: (folder / "new").write_text("new"),
    "make with TensorFlow": lambda: tf.io.gfile.GFile(str(folder / "new"), "w").write("new"),
    "make below": lambda: (folder / "train" / "new").write_text("new"),
    "make a folder": lambda: (folder / "sub").mkdir(),
    "change": lambda: (folder / "a").write_text("new"),
    "rename": lambda: (folder / "a").rename(folder / "b").rename(folder / "a"),
    "remove": lambda: (folder / "a").unlink(),
  }
  for name, attempt in attempts.items():
    try:
      attempt()
      done.append(name)
    except (OSError, tf.errors.OpError):
      continue
  return done


def test_nothing_can_be_changed_in_a_read_only_folder(folder):
  try:
    with faults.read_only(folder):
      assert try_everything(folder) == []
      assert (folder / "a").read_text() == "old"
  except RuntimeError as error:
    assert "Run the test as a user other than root" in str(error)
    pytest.skip(str(error))
  assert len(try_everything(folder)) == 7


def test_the_rights_come_back_when_the_body_fails(folder):
  before = (folder / "a").stat().st_mode
  with pytest.raises((ZeroDivisionError, RuntimeError)), faults.read_only(folder):
    raise ZeroDivisionError
  assert (folder / "a").stat().st_mode == before
  (folder / "new").write_text("new")


def test_root_who_may_not_mount_is_told_so(folder, monkeypatch):
  monkeypatch.setattr(os, "geteuid", lambda: 0)
  monkeypatch.setenv("PATH", "/nowhere")
  with pytest.raises(RuntimeError, match="Run the test as a user other than root"), faults.read_only(folder):
    pass


def test_users_lose_the_rights_to_write_and_get_them_back(folder, monkeypatch):
  monkeypatch.setattr(damage.os, "geteuid", lambda: 1000)
  paths = [folder, folder / "train", folder / "a"]
  before = [path.stat().st_mode for path in paths]
  with faults.read_only(folder):
    assert [path.stat().st_mode & 0o222 for path in paths] == [0, 0, 0]
  assert [path.stat().st_mode for path in paths] == before


def test_exactly_one_bit_is_flipped_where_the_seed_says(tmp_path):
  path = tmp_path / "a"
  path.write_bytes(bytes(1000))
  place, bit = faults.flip_bit(path, seed=3)
  expected = bytearray(1000)
  expected[place] = 1 << bit
  assert path.read_bytes() == expected
  assert faults.flip_bit(path, seed=3) == (place, bit)
  assert path.read_bytes() == bytes(1000)
  assert len({faults.flip_bit(path, seed=seed) for seed in range(20)}) > 15


def test_a_flipped_bit_is_put_right_afterwards_even_if_the_file_went(tmp_path):
  path = tmp_path / "a"
  path.write_bytes(b"abc")
  with faults.flipped_bit(path):
    assert path.read_bytes() != b"abc"
    path.unlink()
  assert path.read_bytes() == b"abc"


def test_an_empty_file_has_no_bit(tmp_path):
  (tmp_path / "a").touch()
  with pytest.raises(ValueError, match="a is empty"):
    faults.flip_bit(tmp_path / "a")
