import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint import manifest
from official_trainer.run import session as session_module
from official_trainer.testing import compare
from official_trainer.testing.compare import differences, first_different_step, tensor_differences
from tests import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("finished")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    tiny.build(folder / "run", **(tiny.BEST | {"best_checkpoint_export_subdir": "deep/best"})).run()
  return folder / "run"


@pytest.fixture
def copy(finished, tmp_path):
  return shutil.copytree(finished, tmp_path / "copy")


def test_a_copy_of_a_run_does_not_differ(finished, copy):
  assert differences(finished, copy) == []
  assert first_different_step(finished, copy) is None


def test_another_row_is_shown_with_its_line(finished, copy):
  lines = (copy / "history.jsonl").read_text().splitlines()
  row = json.loads(lines[2])
  lines[2] = json.dumps(row | {"metrics": {"accuracy": -1.0}})
  (copy / "history.jsonl").write_text("\n".join(lines) + "\n")
  (found,) = differences(finished, copy)
  assert found.startswith("history.jsonl: from line 3 on: {") and found.endswith('"metrics": {"accuracy": -1.0}}')
  assert first_different_step(finished, copy) == row["step"]


def test_a_missing_row_is_a_difference(finished, copy):
  lines = (copy / "history.jsonl").read_text().splitlines()
  (copy / "history.jsonl").write_text("\n".join(lines[:-1]) + "\n")
  (found,) = differences(finished, copy)
  assert found.endswith("!= nothing")
  assert first_different_step(finished, copy) == json.loads(lines[-1])["step"]
  (copy / "history.jsonl").unlink()
  assert "from line 1 on" in differences(finished, copy)[0]


def test_another_newest_checkpoint_is_a_difference(finished, copy):
  os.remove(manifest.manifest_path(str(copy / "ckpt-6")))
  assert differences(finished, copy) == ["newest checkpoint: step 6 != step 4"]
  assert differences(copy, finished) == ["newest checkpoint: step 4 != step 6"]


def test_older_checkpoints_clock_times_and_settings_are_left_out(finished, copy):
  os.remove(manifest.manifest_path(str(copy / "ckpt-2")))
  (copy / "timings.jsonl").write_text("{}")
  (copy / "params.yaml").write_text("{}")
  assert differences(finished, copy) == []


def test_the_best_record_and_its_weights_are_compared_wherever_they_are(finished, copy):
  record = copy / "deep/best/info.json"
  content = json.loads(record.read_text())
  (data,) = (copy / "deep/best").glob("*.data-*")
  flipped = bytearray(data.read_bytes())
  flipped[2] ^= 1
  data.write_bytes(flipped)
  (found,) = differences(finished, copy)
  assert found.startswith("deep/best/best_ckpt-") and "cannot be read: " in found
  record.write_text(json.dumps(content | {"accuracy": 2.0}))
  (found,) = differences(finished, copy)
  assert found.startswith("deep/best: {")
  shutil.rmtree(copy / "deep")
  (found,) = differences(finished, copy)
  assert found.endswith("!= None")


def written(folder, **values):
  variables = {name: tf.Variable(value) for name, value in values.items()}
  return tf.train.Checkpoint(**variables).write(str(folder / "ckpt-1"))


def test_values_are_compared_by_their_bits(tmp_path):
  for name in "ab":
    (tmp_path / name).mkdir()
  nan = np.float32(np.nan)
  one = written(tmp_path / "a", same=[1.0, nan], zero=[0.0, 1.0], other=[1.0, 2.0, 3.0], shape=[1.0], text="x", left=1)
  two = written(tmp_path / "b", same=[1.0, nan], zero=[-0.0, 1.0], other=[1.5, 2.0, 5.0], shape=[[1.0]], text="y")
  assert tensor_differences(one, two) == [
    "ckpt-1: only one run has left/.ATTRIBUTES/VARIABLE_VALUE",
    "ckpt-1: other: 2 of 3 numbers, by up to 2",
    "ckpt-1: shape: float32[1] != float32[1, 1]",
    "ckpt-1: text: other text",
    "ckpt-1: zero: 1 of 2 numbers, by up to 0",
  ]


def test_of_the_state_in_python_the_part_that_differs_is_named(finished, tmp_path):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    built = tiny.build(tmp_path / "run", **(tiny.BEST | {"best_checkpoint_export_subdir": "deep/best"}))
    built.state.host.extras["counter"] = 3
    built.run()
  assert differences(finished, tmp_path / "run") == ["ckpt-6: host/extras: other text"]


def test_runs_in_memory_are_compared_as_well(finished):
  for folder, _, names in os.walk(finished):
    for name in names:
      target = f"ram://compare/{os.path.relpath(os.path.join(folder, name), finished)}"
      tf.io.gfile.makedirs(os.path.dirname(target))
      tf.io.gfile.copy(os.path.join(folder, name), target)
  assert differences(finished, "ram://compare") == []
  assert list(compare._best_folders("ram://compare")) == ["deep/best"]
