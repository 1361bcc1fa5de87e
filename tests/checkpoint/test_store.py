import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint import manifest, store
from official_trainer.checkpoint.store import CheckpointStore, new_checkpoints
from official_trainer.errors import BrokenCheckpoint, CheckpointMismatch


class Saved:
  """A variable whose value is the step, and the store that saves it."""

  def __init__(self, folder, shape=(), **settings):
    self.variable = tf.Variable(tf.zeros(shape))
    self.checkpoint = tf.train.Checkpoint(v=self.variable, host=tf.Variable(""))
    self.store = CheckpointStore(str(folder), self.checkpoint, **settings)

  def save(self, *steps):
    for step in steps:
      self.variable.assign(tf.fill(self.variable.shape, float(step)))
      self.store.save(step)
    self.store.wait()
    return self

  @property
  def value(self):
    return float(tf.reduce_mean(self.variable))


def names(folder):
  return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(str(folder)))


def files(*steps):
  suffixes = (".data-00000-of-00001", ".index", ".manifest.json")
  return sorted(f"ckpt-{step}{suffix}" for step in steps for suffix in suffixes)


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
  return str(tmp_path / "run") if request.param == "local" else f"ram://store-{tmp_path.name}"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_saved_is_restored(folder, asynchronous):
  Saved(folder, asynchronous=asynchronous).save(2, 4)
  assert names(folder) == ["checkpoint", *files(2, 4)]
  again = Saved(folder)
  assert again.store.restore_latest() == 4
  assert again.value == 4.0
  assert again.store.saved_step == 4


def test_a_store_touches_nothing_before_it_is_used(tmp_path):
  Saved(tmp_path / "run")
  assert os.listdir(tmp_path) == []


def test_a_folder_without_checkpoints_restores_nothing(tmp_path):
  assert Saved(tmp_path).store.restore_latest() is None
  assert Saved(tmp_path / "nowhere").store.restore_latest() is None
  assert Saved(tmp_path / "nowhere").store.foreign_checkpoint() is None


def test_the_newest_ones_and_the_chosen_ones_are_kept(folder):
  saved = Saved(folder, max_to_keep=2, always_keep=(1, 3))
  saved.save(0, 1, 2, 3, 4, 5)
  assert saved.store.steps() == [1, 3, 4, 5]
  assert names(folder) == ["checkpoint", *files(1, 3, 4, 5)]


def test_what_a_kill_before_the_deletion_left_is_deleted_at_the_next_start(folder):
  Saved(folder, max_to_keep=3).save(6, 9, 12)
  again = Saved(folder, max_to_keep=2)
  assert again.store.restore_latest() == 12
  assert names(folder) == ["checkpoint", *files(9, 12)]


def test_one_is_kept_when_one_is_asked_for(tmp_path):
  assert Saved(tmp_path, max_to_keep=1).save(1, 2, 3).store.steps() == [3]


def test_all_are_kept_when_no_number_is_asked_for(tmp_path):
  assert Saved(tmp_path, max_to_keep=None).save(*range(8)).store.steps() == list(range(8))


def test_a_lower_number_takes_effect_at_the_next_save(tmp_path):
  Saved(tmp_path, max_to_keep=5).save(*range(5))
  assert Saved(tmp_path, max_to_keep=2).save(5).store.steps() == [4, 5]


def test_the_state_file_names_what_is_there(tmp_path):
  Saved(tmp_path, max_to_keep=2).save(1, 2, 3)
  state = tf.train.get_checkpoint_state(str(tmp_path))
  assert [os.path.basename(p) for p in state.all_model_checkpoint_paths] == ["ckpt-2", "ckpt-3"]
  assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-3")


def test_the_facts_are_in_every_manifest(tmp_path):
  Saved(tmp_path, facts={"seed": 7}).save(1)
  assert manifest.verify(str(tmp_path / "ckpt-1"))["seed"] == 7


# ---- Saving in the background -----------------------------------------------------------------------


def test_a_background_save_holds_the_values_of_its_step_though_training_went_on(tmp_path):
  saved = Saved(tmp_path, shape=(1 << 20,), max_to_keep=None)
  for step in range(1, 6):
    saved.variable.assign(tf.fill(saved.variable.shape, float(step)))
    saved.store.save(step)
    for _ in range(3):
      saved.variable.assign_add(tf.ones(saved.variable.shape))
  saved.store.wait()
  for step in range(1, 6):
    value = tf.train.load_variable(str(tmp_path / f"ckpt-{step}"), "v/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(value, np.full([1 << 20], step, np.float32))


def test_a_background_save_does_not_wait_for_the_disk(tmp_path, monkeypatch):
  disk, original = threading.Event(), manifest.describe

  def slow(*args):
    assert disk.wait(60)
    return original(*args)

  monkeypatch.setattr(store.manifest, "describe", slow)
  saved = Saved(tmp_path, asynchronous=True)
  saved.store.save(1)
  assert saved.store.steps() == []  # Not committed, yet `save` has returned.
  disk.set()
  saved.store.wait()
  assert saved.store.steps() == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_an_error_at_the_latest_when_one_waits(tmp_path, monkeypatch, asynchronous):
  def full(path, text):
    raise OSError(28, "No space left on device", path)

  saved = Saved(tmp_path, asynchronous=asynchronous).save(1)
  monkeypatch.setattr(store, "write_text", full)
  with pytest.raises(OSError, match="No space left on device"):
    saved.save(2)
  assert saved.store.steps() == [1]


def test_a_failed_background_save_is_an_error_at_the_next_save(tmp_path, monkeypatch):
  failed, original = threading.Event(), store.write_text

  def full(path, text):
    failed.set()
    raise OSError(28, "No space left on device", path)

  saved = Saved(tmp_path, asynchronous=True).save(1)
  monkeypatch.setattr(store, "write_text", full)
  saved.store.save(2)
  assert failed.wait(60)
  with pytest.raises(OSError, match="No space left on device"):
    for step in (3, 4):  # The first may still pass while the thread hands the error over.
      saved.store.save(step)
    saved.store.wait()
  monkeypatch.setattr(store, "write_text", original)
  assert Saved(tmp_path).store.restore_latest() == 1


# ---- Broken and unfinished ones ---------------------------------------------------------------------


def truncate(path):
  with open(path, "r+b") as file:
    file.truncate(file.seek(0, os.SEEK_END) // 2)


def flip(path):
  with open(path, "r+b") as file:
    byte = file.read(1)[0]
    file.seek(0)
    file.write(bytes([byte ^ 1]))


def blank(path):
  with open(path, "wb"):
    pass


BREAKAGES = {
  "a truncated data file": (truncate, "data-00000-of-00001"),
  "a flipped byte in a data file": (flip, "data-00000-of-00001"),
  "a missing data file": (os.remove, "data-00000-of-00001"),
  "a flipped byte in the index": (flip, "index"),
  "a missing index": (os.remove, "index"),
  "an unreadable manifest": (truncate, "manifest.json"),
  "an empty manifest": (blank, "manifest.json"),
}


@pytest.mark.parametrize("kind", BREAKAGES)
def test_a_broken_newest_one_is_set_aside_and_the_older_one_used(tmp_path, kind, caplog):
  Saved(tmp_path, shape=(100,)).save(2, 4)
  damage, suffix = BREAKAGES[kind]
  damage(tmp_path / f"ckpt-4.{suffix}")
  left = [name for name in files(4) if (tmp_path / name).exists()]
  again = Saved(tmp_path, shape=(100,))
  assert again.store.restore_latest() == 2
  assert again.value == 2.0
  assert "ckpt-4 is broken" in caplog.text
  assert names(tmp_path) == ["broken_checkpoints", "checkpoint", *files(2)]
  assert names(tmp_path / "broken_checkpoints") == left
  assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-2")


def test_a_step_that_was_set_aside_is_saved_and_restored_again(tmp_path):
  Saved(tmp_path).save(2, 4)
  truncate(tmp_path / "ckpt-4.index")
  again = Saved(tmp_path)
  again.store.restore_latest()
  again.save(4)
  assert Saved(tmp_path).store.restore_latest() == 4


def test_several_broken_ones_are_passed_over(tmp_path):
  Saved(tmp_path).save(2, 4, 6)
  for step in (4, 6):
    blank(tmp_path / f"ckpt-{step}.index")
  assert Saved(tmp_path).store.restore_latest() == 2


def test_when_every_one_is_broken_the_run_does_not_silently_start_again(tmp_path):
  Saved(tmp_path).save(2, 4)
  for step in (2, 4):
    truncate(tmp_path / f"ckpt-{step}.index")
  before = names(tmp_path)
  for _ in range(2):
    with pytest.raises(BrokenCheckpoint, match="every checkpoint in .* is broken"):
      Saved(tmp_path).store.restore_latest()
  assert names(tmp_path) == before


def test_a_checkpoint_without_a_manifest_does_not_exist_and_its_files_are_removed(folder):
  Saved(folder, max_to_keep=None).save(2, 4, 6)
  tf.io.gfile.remove(f"{folder}/ckpt-4.manifest.json")
  tf.io.gfile.remove(f"{folder}/ckpt-6.manifest.json")
  tf.io.gfile.makedirs(f"{folder}/ckpt-8_temp/part")
  assert Saved(folder).store.steps() == [2]
  assert Saved(folder).store.restore_latest() == 2
  assert names(folder) == ["checkpoint", *files(2)]


def test_files_of_others_stay(tmp_path):
  Saved(tmp_path).save(2)
  others = ["ckpt-notes.txt", "model.ckpt-5.index", "params.yaml", "ckpt-5.png"]
  for name in others:
    (tmp_path / name).write_text("mine", "utf-8")
  Saved(tmp_path).store.restore_latest()
  assert set(others) < set(names(tmp_path))


def test_a_save_that_is_killed_before_its_manifest_leaves_the_one_before(tmp_path, monkeypatch):
  def killed(path, text):
    raise KeyboardInterrupt

  saved = Saved(tmp_path, asynchronous=False, max_to_keep=1).save(2)
  monkeypatch.setattr(store, "write_text", killed)
  with pytest.raises(KeyboardInterrupt):
    saved.save(4)
  monkeypatch.undo()
  assert {"ckpt-4.index", *files(2)} < set(names(tmp_path))
  assert Saved(tmp_path).store.restore_latest() == 2


def test_a_deletion_that_is_killed_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
  removed, remove = [], tf.io.gfile.remove

  def killed(path):
    if removed:
      raise KeyboardInterrupt
    removed.append(path)
    remove(path)

  saved = Saved(tmp_path, asynchronous=False, max_to_keep=1).save(2)
  monkeypatch.setattr(store.tf.io.gfile, "remove", killed)
  with pytest.raises(KeyboardInterrupt):
    saved.save(4)
  monkeypatch.undo()
  assert removed == [str(tmp_path / "ckpt-2.manifest.json")]
  assert Saved(tmp_path).store.restore_latest() == 4
  assert names(tmp_path) == ["checkpoint", *files(4)]


@pytest.mark.parametrize("damage", [os.remove, blank, truncate])
def test_a_lost_or_unreadable_state_file_loses_no_checkpoint(tmp_path, damage):
  Saved(tmp_path).save(2, 4)
  damage(tmp_path / "checkpoint")
  assert Saved(tmp_path).store.restore_latest() == 4
  assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-4")


def test_a_checkpoint_of_something_else_is_refused_and_stays(tmp_path):
  Saved(tmp_path).save(2)
  other = tf.train.Checkpoint(v=tf.Variable(1.0), w=tf.Variable([1.0, 2.0]))
  with pytest.raises(CheckpointMismatch, match=r"- w \[2\]"):
    CheckpointStore(str(tmp_path), other).restore_latest()
  assert names(tmp_path) == ["checkpoint", *files(2)]


# ---- Checkpoints of other programs ------------------------------------------------------------------


def write_foreign(folder, *steps):
  checkpoint = tf.train.Checkpoint(v=tf.Variable(0.0))
  manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=None)
  for step in steps:
    checkpoint.v.assign(step)
    manager.save(step)


def test_a_folder_of_another_program_has_a_foreign_checkpoint(tmp_path):
  write_foreign(tmp_path, 50, 100)
  assert Saved(tmp_path).store.restore_latest() is None
  assert Saved(tmp_path).store.foreign_checkpoint() == str(tmp_path / "ckpt-100")


def test_a_folder_of_ours_has_no_foreign_checkpoint(tmp_path):
  assert Saved(tmp_path).save(2).store.foreign_checkpoint() is None


@pytest.mark.parametrize("damage", [os.remove, blank])
def test_the_newest_foreign_checkpoint_is_found_without_its_state_file(tmp_path, damage):
  write_foreign(tmp_path, 50, 100)
  damage(tmp_path / "checkpoint")
  assert Saved(tmp_path).store.foreign_checkpoint() == str(tmp_path / "ckpt-100")


def test_a_first_save_of_ours_that_was_not_finished_is_no_foreign_checkpoint(tmp_path):
  saved = Saved(tmp_path).save(0)
  (tmp_path / "ckpt-0.manifest.json").unlink()
  assert saved.store.foreign_checkpoint() is None
  (tmp_path / "checkpoint").unlink()
  assert saved.store.foreign_checkpoint() is None


def test_foreign_checkpoints_are_never_deleted(tmp_path):
  write_foreign(tmp_path, 50, 100)
  before = [name for name in names(tmp_path) if name != "checkpoint"]
  Saved(tmp_path, max_to_keep=1).save(101, 102)
  Saved(tmp_path).store.restore_latest()
  assert set(before) < set(names(tmp_path))


# ---- Watching a folder ------------------------------------------------------------------------------


def test_new_checkpoints_come_in_order_each_once(tmp_path):
  saved = Saved(tmp_path, max_to_keep=None).save(4, 2)
  coming = iter([[6], [], [8, 10]])

  def poll():
    for steps in coming:
      saved.save(*steps)
      yield True

  assert list(new_checkpoints(str(tmp_path), after=-1, poll=poll())) == [2, 4, 6, 8, 10]


def test_only_steps_after_the_given_one_are_new(tmp_path):
  Saved(tmp_path).save(2, 4, 6)
  assert list(new_checkpoints(str(tmp_path), after=4, poll=iter(()))) == [6]


def test_watching_ends_when_the_poll_says_so_and_a_folder_may_come_later(tmp_path):
  assert list(new_checkpoints(str(tmp_path / "later"), after=-1, poll=iter([True, False]))) == []
