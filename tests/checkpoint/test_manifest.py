import json

import pytest
import tensorflow as tf

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.manifest import BrokenCheckpoint


@pytest.fixture
def prefix(tmp_path):
  """A checkpoint of step 4 with its manifest."""
  prefix = manifest.checkpoint_prefix(str(tmp_path), 4)
  tf.train.Checkpoint(v=tf.Variable(tf.range(100.0))).write(prefix)
  text = manifest.describe(prefix, 4, {"seed": 7})
  (tmp_path / "ckpt-4.manifest.json").write_text(text, "utf-8")
  return prefix


def data_file(prefix):
  return f"{prefix}.data-00000-of-00001"


def flip_a_byte(path, position):
  with open(path, "r+b") as file:
    file.seek(position)
    byte = file.read(1)[0]
    file.seek(position)
    file.write(bytes([byte ^ 1]))


def test_a_manifest_says_which_files_of_which_content_belong_to_the_step(prefix):
  found = manifest.verify(prefix)
  assert found["format_version"] == manifest.FORMAT_VERSION
  assert (found["step"], found["seed"], found["finite"]) == (4, 7, True)
  assert sorted(found["files"]) == ["ckpt-4.data-00000-of-00001", "ckpt-4.index"]
  assert all(len(entry["sha256"]) == 64 for entry in found["files"].values())


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_one_flipped_byte_is_found(prefix, suffix):
  flip_a_byte(prefix + suffix, 10)
  with pytest.raises(BrokenCheckpoint, match=f"ckpt-4{suffix} has another checksum"):
    manifest.verify(prefix)


def test_a_truncated_file_is_found(prefix):
  with open(data_file(prefix), "r+b") as file:
    file.truncate(100)
  with pytest.raises(BrokenCheckpoint, match="has 100 bytes; the manifest says"):
    manifest.verify(prefix)


def test_a_missing_file_is_found(prefix):
  tf.io.gfile.remove(data_file(prefix))
  with pytest.raises(BrokenCheckpoint, match=r"ckpt-4\.data-00000-of-00001 is missing"):
    manifest.verify(prefix)


def test_a_file_of_another_save_is_found(prefix):
  tf.io.gfile.copy(data_file(prefix), f"{prefix}.data-00000-of-00002")
  with pytest.raises(BrokenCheckpoint, match="00002 is not in the manifest"):
    manifest.verify(prefix)


@pytest.mark.parametrize(
  "text",
  ["", '{"files": {"ckpt-4.index"', "[]", "{}", '{"files": []}', '{"files": {"a": {}}}', "\0\xff"],
)
def test_a_manifest_that_cannot_be_understood_is_a_broken_checkpoint(prefix, tmp_path, text):
  (tmp_path / "ckpt-4.manifest.json").write_text(text, "latin-1")
  with pytest.raises(BrokenCheckpoint, match=r"ckpt-4\.manifest\.json cannot be read"):
    manifest.verify(prefix)


def test_without_a_manifest_there_is_no_checkpoint(prefix, tmp_path):
  assert manifest.committed_steps(str(tmp_path)) == [4]
  (tmp_path / "ckpt-4.manifest.json").unlink()
  assert manifest.committed_steps(str(tmp_path)) == []
  with pytest.raises(BrokenCheckpoint):
    manifest.verify(prefix)


def test_steps_are_in_the_order_of_numbers_and_other_names_are_left_out(tmp_path):
  names = ["ckpt-10", "ckpt-9", "ckpt-100", "best_ckpt-1", "ckpt-x", "ckpt-5.tmp", ".ckpt-7"]
  for name in names:
    (tmp_path / f"{name}.manifest.json").write_text("{}", "utf-8")
  assert manifest.committed_steps(str(tmp_path)) == [9, 10, 100]


def test_a_folder_that_is_not_there_has_no_steps(tmp_path):
  assert manifest.committed_steps(str(tmp_path / "nowhere")) == []


def test_equal_files_have_equal_manifests(prefix):
  assert manifest.describe(prefix, 4, {"b": 1, "a": 2}) == manifest.describe(prefix, 4, {"a": 2, "b": 1})


def test_files_of_steps_that_begin_alike_are_kept_apart(prefix, tmp_path):
  other = manifest.checkpoint_prefix(str(tmp_path), 40)
  tf.train.Checkpoint(v=tf.Variable(1.0)).write(other)
  assert manifest.data_files(prefix) == [data_file(prefix), f"{prefix}.index"]
  assert len(json.loads(manifest.describe(other, 40, {}))["files"]) == 2
