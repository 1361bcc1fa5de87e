"""A run that was stopped and is started again in its folder."""

import os
import shutil

import pytest
import tensorflow as tf

from official_trainer.checkpoint.best_folder import read_record
from official_trainer.errors import CheckpointMismatch
from tests import tiny


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp("uninterrupted")
  result = tiny.build(folder, **tiny.EVERYTHING).run()
  return folder, result


@pytest.mark.parametrize(("step", "mode"), [(3, "train"), (4, "train"), (6, "train"), (6, "validation"), (12, "train")])
def test_an_interrupted_run_ends_with_the_bytes_of_the_uninterrupted_one(uninterrupted, tmp_path, step, mode):
  whole, _ = uninterrupted
  built = tiny.build(tmp_path, **tiny.EVERYTHING, session=tiny.interrupted_by(step, mode))
  with pytest.raises(tiny.Interrupted):
    built.run()
  tiny.build(tmp_path, **tiny.EVERYTHING).run()
  for name in ("history.jsonl", "best_ckpt/info.json"):
    assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
  tiny.assert_same_contents(tmp_path / "ckpt-13", whole / "ckpt-13")
  record = read_record(str(whole / "best_ckpt"))["best_ckpt_file"]
  tiny.assert_same_contents(tmp_path / "best_ckpt" / record, whole / "best_ckpt" / record)


def test_an_evaluation_that_was_due_and_not_done_comes_first(uninterrupted, tmp_path):
  whole, _ = uninterrupted
  for name in [*tiny.files_of(whole, 3), *tiny.files_of(whole, 6)]:
    shutil.copy(whole / name, tmp_path / name)
  built = tiny.build(tmp_path, **tiny.EVERYTHING, session=tiny.interrupted_by(6, "validation"))
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert tiny.rows(tmp_path)[-1] == (6, "validation")
  assert built.state.step == 6


def test_rows_of_an_attempt_that_was_rolled_back_are_dropped(tmp_path):
  settings = {"train_steps": 8, "checkpoint_interval": 6}
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, **settings, session=tiny.interrupted_by(4)).run()
  assert tiny.steps_of(tmp_path, "train") == [2, 4]
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, **settings, session=tiny.interrupted_by(2)).run()
  assert tiny.steps_of(tmp_path, "train") == [2]


def test_the_state_wins_over_best_weights_that_are_ahead_of_it(tmp_path):
  """The best of step 4 is on disk, the checkpoint of step 4 is broken: the run repeats from 2."""
  settings = {**tiny.BEST, "train_steps": 4, "validation_interval": 4}
  tiny.build(tmp_path / "whole", **settings).run()
  shutil.copytree(tmp_path / "whole", tmp_path / "run")
  (tmp_path / "run" / "ckpt-4.index").write_bytes(b"")
  built = tiny.build(tmp_path / "run", **settings, session=tiny.interrupted_by(4))
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert built.state.host.best == {}
  assert read_record(str(tmp_path / "run" / "best_ckpt"))["best_ckpt_global_step"] == 4
  tiny.build(tmp_path / "run", **settings).run()
  for name in ("history.jsonl", "best_ckpt/info.json"):
    whole = (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "run" / name).read_bytes() == whole, name


def test_a_broken_newest_checkpoint_is_set_aside_and_the_run_repeats_from_the_older_one(uninterrupted, tmp_path):
  whole, _ = uninterrupted
  folder = tmp_path / "run"
  shutil.copytree(whole, folder)
  (folder / "ckpt-13.data-00000-of-00001").unlink()
  built = tiny.build(folder, **tiny.EVERYTHING)
  built.run()
  assert "resumed at step 12" in built.said
  assert (folder / "history.jsonl").read_bytes() == (whole / "history.jsonl").read_bytes()
  tiny.assert_same_contents(folder / "ckpt-13", whole / "ckpt-13")
  assert os.listdir(folder / "broken_checkpoints")


@pytest.mark.parametrize("mode", ["train", "train_and_eval", "train_and_post_eval"])
def test_a_finished_run_asked_again_trains_nothing_and_evaluates_once(tmp_path, mode):
  first = tiny.build(tmp_path, mode=mode, **tiny.BEST)
  one = first.run()
  before = {name: (tmp_path / name).read_bytes() for name in ["history.jsonl", *tiny.files_of(tmp_path, 6)]}
  events = []
  again = tiny.build(
    tmp_path,
    mode=mode,
    **tiny.BEST,
    session={"train_actions": [events.append], "eval_actions": [events.append]},
  )
  two = again.run()
  assert [(event.step, event.mode) for event in events] == ([] if mode == "train" else [(6, "validation")])
  assert two.metrics == one.metrics
  assert again.trainer._train_loop_fn is None
  for name, content in before.items():
    assert (tmp_path / name).read_bytes() == content, name


def test_a_run_that_is_given_more_steps_goes_on(tmp_path):
  tiny.build(tmp_path, train_steps=4).run()
  assert tiny.build(tmp_path, train_steps=8).run().step == 8
  assert tiny.steps_of(tmp_path, "train") == [2, 4, 6, 8]
  assert tiny.steps_of(tmp_path, "validation") == [2, 4, 6, 8]


def test_a_folder_of_another_model_is_refused_and_stays_as_it_is(tmp_path):
  tiny.build(tmp_path, train_steps=2).run()
  before = sorted(os.listdir(tmp_path))
  with pytest.raises(CheckpointMismatch, match="in the model, not in the checkpoint"):
    tiny.build(tmp_path, task={"hidden": (3,)}).run()
  assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_of_another_program_is_continued_with_a_warning(tmp_path):
  model = tiny.build("unused", mode="eval").trainer.model
  checkpoint = tf.train.Checkpoint(model=model, global_step=tf.Variable(4, dtype=tf.int64))
  tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=3).save(4)
  built = tiny.build(tmp_path)
  assert built.run().step == 6
  assert "has no manifest: another program wrote it" in built.said
  assert tiny.committed(tmp_path) == [4, 6]
