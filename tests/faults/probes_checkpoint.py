"""Faults in saving, finding and restoring checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from tests.faults.probe import probe
from tests.faults.stack import Job, Stack, checkpoint_steps, crash_before_batch
from tests.faults.values import (
  all_finite,
  check,
  latest,
  model_weights,
  points,
  read_checkpoint,
  same_bits,
)

LONGER = {"trainer.train_steps": 8}
ADAM = {"trainer.optimizer_config.optimizer.type": "adam"}
FIXED = {"num_examples": 4, "batch_size": 4}
"""One batch again and again: what a run does then does not depend on its place in the data."""


@probe(11)
def every_restart_fails_because_the_newest_checkpoint_is_poisoned(stack: Stack, folder: Path) -> None:
  # A gradient that is not finite at the last step of a loop: the loss of that loop is still healthy.
  stack.attempt(folder, Job(mode="train", nan_gradient_ids=[13]))
  for step in checkpoint_steps(folder):
    values = read_checkpoint(folder / f"ckpt-{step}").values()
    floats = [value for value in values if np.issubdtype(np.asarray(value).dtype, np.floating)]
    check(all_finite(floats), f"the checkpoint of step {step} holds values that are not finite")
  healed = stack.run(folder, Job(mode="train"))
  check(healed.step == 6 and all_finite(healed.weights), f"a restart on clean data ends at step {healed.step}")


@probe(13)
def the_steps_since_the_last_interval_are_lost(stack: Stack, folder: Path) -> None:
  intervals = {"trainer.checkpoint_interval": 4, "trainer.validation_interval": 7, "trainer.train_steps": 7}

  def fails(ids: np.ndarray) -> None:
    raise ValueError("an evaluation that fails")

  done = stack.attempt(folder, Job(config=intervals, on_eval=fails))
  check(done.error is not None, "an evaluation that fails must not pass for a good one")
  check(done.step == 7, f"training ended at step {done.step}, 7 were asked for")
  check(7 in checkpoint_steps(folder), f"7 steps were done; the checkpoints are of {checkpoint_steps(folder)}")


@probe(14)
def a_broken_newest_checkpoint_ends_the_run(stack: Stack, folder: Path) -> None:
  stack.run(folder, Job(mode="train"))
  for path in folder.glob("ckpt-6.data*"):
    path.write_bytes(path.read_bytes()[:-40])
  resumed = stack.run(folder, Job(mode="train", config=LONGER, allowed_changes=["trainer.train_steps"]))
  check(len(resumed.trained) == 4, f"{len(resumed.trained)} steps from 4 to 8 were done, there are 4")
  check("ckpt-6" in resumed.said, "not a word about the broken checkpoint")


@probe(15)
def a_lost_state_file_starts_the_run_from_zero(stack: Stack, folder: Path) -> None:
  for name, spoil in (("lost", os.remove), ("unreadable", lambda path: Path(path).write_bytes(b"\x00\xff" * 20))):
    place = folder / name
    stack.run(place, Job(mode="train"))
    spoil(place / "checkpoint")
    resumed = stack.run(place, Job(mode="train", config=LONGER, allowed_changes=["trainer.train_steps"]))
    check(len(resumed.trained) == 2, f"state file {name}: {len(resumed.trained)} steps were done from step 6 to 8")


@probe(16)
def a_checkpoint_of_another_model_loads_by_halves(stack: Stack, folder: Path) -> None:
  stack.run(folder, Job(mode="train"))
  other = stack.attempt(folder, Job(mode="train", layers="deeper", config=LONGER, allowed_changes=["trainer"]))
  check(other.error is not None, "weights of one model were taken for half of another's")
  text = str(other.error)
  check("kernel" in text and "bias" in text, f"the error does not name what is missing and what is left: {text}")


@probe(39)
def the_last_checkpoint_is_not_the_last(stack: Stack, folder: Path) -> None:
  best = {
    "trainer.best_checkpoint_export_subdir": "best_ckpt",
    "trainer.best_checkpoint_eval_metric": "score",
    "trainer.best_checkpoint_metric_comp": "higher",
  }
  done = stack.run(folder, Job(config=best, score=lambda step: -step))
  check(latest(folder).name == "ckpt-6", f"the newest checkpoint is {latest(folder).name}, training ended at 6")
  check(same_bits(model_weights(latest(folder)), done.weights), "the newest checkpoint holds other weights")


@probe(44)
def a_kill_while_saving_leaves_a_checkpoint_that_cannot_be_read(stack: Stack, folder: Path) -> None:
  stack.run(folder / "whole", Job(mode="train"))

  def nothing_but_temporary_files(place: Path) -> None:
    for path in place.glob("ckpt-6.*"):
      path.unlink()
    (place / "ckpt-6_temp").mkdir()
    (place / "ckpt-6_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")

  def data_without_index(place: Path) -> None:
    (place / "ckpt-6.index").unlink()

  def half_of_the_data(place: Path) -> None:
    data = next(place.glob("ckpt-6.data*"))
    data.write_bytes(data.read_bytes()[:50])

  for number, cut in enumerate((nothing_but_temporary_files, data_without_index, half_of_the_data, lambda place: None)):
    place = folder / str(number)
    shutil.copytree(folder / "whole", place)
    # A state file holds absolute paths in one of the stacks: the copy stands where the original stood.
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.move(folder / "whole", folder / "aside")
    shutil.move(place, folder / "whole")
    stack.without_commit(str(folder / "whole"), 6)
    cut(folder / "whole")
    resumed = stack.run(folder / "whole", Job(mode="train", config=LONGER, allowed_changes=["trainer.train_steps"]))
    check(len(resumed.trained) in (2, 4), f"kill {number}: {len(resumed.trained)} steps were done from there to 8")
    shutil.rmtree(folder / "whole")
    shutil.move(folder / "aside", folder / "whole")


@probe(35)
def the_learning_rate_is_wrong_after_a_restart(stack: Stack, folder: Path) -> None:
  rate = "trainer.optimizer_config.learning_rate"
  cosine = {f"{rate}.type": "cosine", f"{rate}.cosine.initial_learning_rate": 0.1, f"{rate}.cosine.decay_steps": 10}
  config = {**cosine, "trainer.train_steps": 10, "trainer.steps_per_loop": 1, "trainer.summary_interval": 1}
  stack.run(folder / "whole", Job(mode="train", config=config))
  stack.attempt(folder / "two", Job(mode="train", config=config, on_train=crash_before_batch(4)))
  stack.run(folder / "two", Job(mode="train", config=config))
  one, two = (dict(points(folder / name / "train", "learning_rate")) for name in ("whole", "two"))
  check(one == two, f"learning rates {one} without an interruption, {two} with one")


@probe(49)
def the_loss_scale_is_not_in_the_checkpoint(stack: Stack, folder: Path) -> None:
  half = {"runtime.mixed_precision_dtype": "float16", "runtime.loss_scale": "dynamic"}
  job = Job(mode="train", config=half, num_examples=40, nan_gradient_ids=[1, 5])
  whole = stack.run(folder / "whole", job)
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(2)))
  resumed = stack.run(folder / "two", job.but(nan_gradient_ids=[]))

  def scale(place: Path) -> list[float]:
    values = read_checkpoint(latest(place))
    return [float(value) for name, value in values.items() if "loss_scale" in name and "opt" in name]

  check(scale(folder / "whole"), "no loss scale in the checkpoint")
  check(scale(folder / "whole")[0] == 2.0**15 / 4, f"two overflows left the loss scale at {scale(folder / 'whole')}")
  check(scale(folder / "two") == scale(folder / "whole"), f"after a restart it is {scale(folder / 'two')}")
  check(whole.step == resumed.step == 6, "the runs ended at different steps")


@probe(50)
def the_same_dropout_masks_come_again_after_a_restart(stack: Stack, folder: Path) -> None:
  job = Job(mode="train", layers="dropout", **FIXED)
  whole = stack.run(folder / "whole", job)
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(2)))
  resumed = stack.run(folder / "two", job)
  check(len(resumed.trained) == 4, f"{len(resumed.trained)} steps were done from step 2 to 6")
  check(same_bits(whole.weights, resumed.weights), "the masks after a restart are not those of the uninterrupted run")


@probe(63)
def a_restored_run_is_not_the_uninterrupted_one(stack: Stack, folder: Path) -> None:
  job = Job(mode="train", config=ADAM, **FIXED)
  whole = stack.run(folder / "whole", job)
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(4)))
  resumed = stack.run(folder / "two", job)
  check(len(resumed.trained) == 2, f"{len(resumed.trained)} steps were done from step 4 to 6")
  check(same_bits(whole.weights, resumed.weights), "Adam, restored, makes other weights")


@probe(76)
def what_is_saved_is_not_the_state_of_its_step(stack: Stack, folder: Path) -> None:
  config = {"trainer.train_steps": 40, "trainer.max_to_keep": 40}
  stack.run(folder / "run", Job(mode="train", config=config))
  for step in (2, 20, 40):
    alone = stack.run(folder / str(step), Job(mode="train", config={"trainer.train_steps": step}))
    saved = folder / "run" / f"ckpt-{step}"
    check(saved.with_name(saved.name + ".index").exists(), f"the checkpoint of step {step} is not complete at the end")
    check(
      same_bits(model_weights(saved), alone.weights), f"the checkpoint of step {step} holds weights of another step"
    )


@probe(33)
def a_finished_run_started_again_does_nothing_or_everything(stack: Stack, folder: Path) -> None:
  stack.run(folder / "run", Job())
  again = stack.run(folder / "run", Job())
  check(not again.trained, f"{len(again.trained)} steps were done although none was left")
  check(len(again.evaluated) == 3, f"{len(again.evaluated)} batches were evaluated; one evaluation has 3")
