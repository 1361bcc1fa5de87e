import json

import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.best import BestCheckpoint
from official_trainer.checkpoint.locate import find_checkpoint, is_model_only, recorded_step
from official_trainer.checkpoint.store import CheckpointStore


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
  return str(tmp_path / "run") if request.param == "local" else f"ram://locate-{tmp_path.name}"


@pytest.fixture
def state():
  return tf.train.Checkpoint(
    model=tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(2)]),
    global_step=tf.Variable(0, dtype=tf.int64),
    host=tf.Variable(""),
  )


@pytest.fixture
def run(folder, state):
  """A run with checkpoints of steps 9 and 10 and the best weights of step 4."""
  store = CheckpointStore(folder, state, asynchronous=False)
  store.save(9)
  store.save(10)
  best = BestCheckpoint(f"{folder}/best_ckpt", "accuracy")
  best.maybe_export_checkpoint(state, {"accuracy": 0.5}, 4)
  return folder


def test_a_prefix_means_itself(run):
  assert find_checkpoint(f"{run}/ckpt-9") == f"{run}/ckpt-9"
  assert find_checkpoint(f"{run}/best_ckpt/best_ckpt-4") == f"{run}/best_ckpt/best_ckpt-4"


def test_a_model_dir_means_its_newest_checkpoint(run):
  assert find_checkpoint(run) == f"{run}/ckpt-10"


def test_a_folder_of_best_weights_means_those_of_its_record(run):
  assert find_checkpoint(f"{run}/best_ckpt") == f"{run}/best_ckpt/best_ckpt-4"


def test_best_weights_are_found_without_record_and_state_file(run):
  for name in ("info.json", "checkpoint"):
    tf.io.gfile.remove(f"{run}/best_ckpt/{name}")
  assert find_checkpoint(f"{run}/best_ckpt") == f"{run}/best_ckpt/best_ckpt-4"
  assert recorded_step(f"{run}/best_ckpt/best_ckpt-4") == 0


def test_nothing_is_found_where_nothing_is(folder):
  tf.io.gfile.makedirs(f"{folder}/empty")
  assert find_checkpoint(f"{folder}/empty") is None
  assert find_checkpoint(f"{folder}/nowhere") is None
  assert find_checkpoint(f"{folder}/ckpt-3") is None


def test_an_uncommitted_save_is_not_what_a_folder_means(run):
  tf.io.gfile.remove(f"{run}/ckpt-10.manifest.json")
  assert find_checkpoint(run) == f"{run}/ckpt-9"


def test_a_folder_of_another_program_means_its_newest(tmp_path):
  checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
  for step in (50, 100):
    tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=None).save(step)
  assert find_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-100")


def test_best_weights_are_told_from_a_whole_state(run):
  assert is_model_only(f"{run}/best_ckpt/best_ckpt-4")
  assert not is_model_only(f"{run}/ckpt-10")


def test_the_step_of_best_weights_is_that_of_their_record(run):
  assert recorded_step(f"{run}/best_ckpt/best_ckpt-4") == 4
  with tf.io.gfile.GFile(f"{run}/best_ckpt/info.json") as file:
    assert json.loads(file.read())["best_ckpt_global_step"] == 4
