"""Faults in which examples a run sees, and in what order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.faults.probe import probe
from tests.faults.stack import Job, Stack, checkpoint_steps, crash_before_batch
from tests.faults.values import check, ids_by_step

LONGER = {"trainer.train_steps": 8}


def resumed_order(stack: Stack, folder: Path, job: Job, *, saved: int, crash: int) -> list[list[int]]:
  """Interrupts a run before batch `crash`, runs it again, and checks that it goes on as the uninterrupted one did.

  Returns:
    The ids that the resumed run saw.
  """
  whole = stack.run(folder / "whole", job).trained
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(crash)))
  resumed = stack.run(folder / "two", job).trained
  check(
    resumed == whole[saved:], f"after step {saved} the uninterrupted run saw {whole[saved:]}, the resumed {resumed}"
  )
  return resumed


@probe(2)
def a_resumed_run_sees_the_head_of_the_data_again(stack: Stack, folder: Path) -> None:
  resumed_order(stack, folder / "in order", Job(mode="train", config=LONGER), saved=4, crash=5)
  resumed_order(stack, folder / "shuffled", Job(mode="train", config=LONGER, shuffle=True), saved=4, crash=5)


@probe(36)
def a_checkpoint_near_the_end_of_an_epoch_repeats_or_skips(stack: Stack, folder: Path) -> None:
  # An epoch of five steps, left before, at and behind its end.
  for saved in (4, 5, 6):
    config = {"trainer.train_steps": 15, "trainer.checkpoint_interval": saved, "trainer.max_to_keep": 1}
    job = Job(mode="train", config=config, num_examples=10, batch_size=2, shuffle=True)
    resumed_order(stack, folder / str(saved), job, saved=saved, crash=saved + 1)


@probe(10)
def steps_are_counted_after_the_data_have_ended(stack: Stack, folder: Path) -> None:
  for in_graph in (True, False):
    place = folder / str(in_graph)
    done = stack.attempt(place, Job(config={**LONGER, "trainer.train_tf_while_loop": in_graph}, repeat=False))
    kind = "inside TensorFlow" if in_graph else "in Python"
    check(done.error is None, f"loop {kind}: the end of the data ends the run with {type(done.error).__name__}")
    check(len(done.trained) == 5, f"loop {kind}: {len(done.trained)} batches were used of 5")
    check(done.step == done.updates == 5, f"loop {kind}: {done.step} steps, {done.updates} updates, 5 batches")
    check(checkpoint_steps(place)[-1] == 5, f"loop {kind}: checkpoints of {checkpoint_steps(place)}")
    check(5 in done.eval_weights or len(done.evaluated) >= 9, f"loop {kind}: the last step was not evaluated")
    check("5" in done.said and "8" in done.said, f"loop {kind}: not a word about the missing steps")


@probe(23)
def uneven_replicas_pull_with_uneven_force(stack: Stack, folder: Path) -> None:
  config = {"trainer.train_steps": 1}
  # Data that end: their only batch is a partial one, of three examples or one.
  for size in (3, 1):
    job = Job(mode="train", config=config, num_examples=size, batch_size=4, repeat=False)
    one = stack.run(folder / f"one {size}", job).weights
    two = stack.run(folder / f"two {size}", job.but(num_replicas=2)).weights
    near = all(np.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, two, strict=True))
    check(near, f"{size} examples on two replicas make the weights {two[0].ravel()}, on one {one[0].ravel()}")


@probe(66)
def finding_the_place_reads_everything_before_it(stack: Stack, folder: Path) -> None:
  read: list[int] = []
  job = Job(mode="train", num_examples=4000, config={"trainer.train_steps": 500, "trainer.steps_per_loop": 500,
                                                     "trainer.summary_interval": 500,
                                                     "trainer.checkpoint_interval": 500})  # fmt: skip
  stack.run(folder, job)
  longer = job.but(config={"trainer.train_steps": 502}, allowed_changes=["trainer.train_steps"],
                   on_read=lambda ids: read.extend(int(i) for i in ids))  # fmt: skip
  resumed = stack.run(folder, longer)
  check(resumed.trained[0] == [2000, 2001, 2002, 2003], f"after 500 batches of 4 the next one is {resumed.trained[0]}")
  check(len(read) < 400, f"{len(read)} examples were decoded for 8 that were used")


@probe(74)
def a_large_shuffle_makes_a_large_checkpoint_or_another_order(stack: Stack, folder: Path) -> None:
  # 4 MB of examples, all of which may wait in a buffer.
  job = Job(mode="train", num_examples=400, extra_columns=2500, shuffle=True, config=LONGER)
  resumed_order(stack, folder, job, saved=4, crash=5)
  size = sum(path.stat().st_size for path in (folder / "whole").glob("ckpt-8.*"))
  check(size < 100_000, f"a model of four numbers has a checkpoint of {size} bytes")


@probe(75)
def the_order_is_the_same_in_every_epoch_or_in_no_run(stack: Stack, folder: Path) -> None:
  job = Job(mode="train", shuffle=True, config={"trainer.train_steps": 10})
  one, same, other = (
    [i for batch in stack.run(folder / name, job.but(seed=seed)).trained for i in batch]
    for name, seed in (("one", 1), ("same", 1), ("other", 2))
  )
  check(one == same, "two runs with one seed saw different orders")
  check(one != other, "two seeds gave the same order")
  check(sorted(one[:20]) == sorted(one[20:]) == list(range(20)), "an epoch does not hold each example once")
  check(one[:20] != one[20:], "two epochs came in the same order")


@probe(42)
def a_recovery_from_a_blow_up_restores_nothing(stack: Stack, folder: Path) -> None:
  config = {"trainer.recovery_max_trials": 2, "trainer.train_steps": 8, "trainer.checkpoint_interval": 4}
  done = stack.run(folder, Job(mode="train", config=config, num_examples=400, nan_ids=[1]))
  check(done.step == 8, f"the run ended at step {done.step}, 8 were asked for")
  check(all(np.isfinite(value).all() for value in done.weights), f"the weights are {done.weights}")
  check(done.updates == 8, f"{done.updates} updates were made in 8 steps")
  check([0, 1, 2, 3] not in done.trained[-8:], "the bad batch is among those that the final weights come from")
  check("leaving out" in done.said or "skip" in done.said.lower(), "not a word about what was left out")


@probe(22)
def the_place_in_the_data_is_lost_under_several_replicas(stack: Stack, folder: Path) -> None:
  job = Job(mode="train", shuffle=True, num_replicas=2, config=LONGER)
  whole = ids_by_step(stack.run(folder / "whole", job).trained, 2)
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(9)))
  resumed = ids_by_step(stack.run(folder / "two", job).trained, 2)
  check(resumed == whole[4:], f"after step 4 the uninterrupted run saw {whole[4:]}, the resumed one {resumed}")


@probe(65)
def another_batch_size_loses_the_place_in_the_data(stack: Stack, folder: Path) -> None:
  stack.run(folder, Job(mode="train", batch_size=2, config={"trainer.train_steps": 4}))
  changed = ["trainer.train_steps", "task.train_data.global_batch_size"]
  resumed = stack.run(folder, Job(mode="train", batch_size=4, allowed_changes=changed))
  check(resumed.trained[0] == [8, 9, 10, 11], f"after 4 batches of 2 the next batch is {resumed.trained[0]}")


@probe(51)
def accumulated_gradients_are_not_those_of_the_large_batch(stack: Stack, folder: Path) -> None:
  stack.require_setting("trainer.gradient_accumulation_steps", "gradient accumulation")
  # A batch of three in two parts: one of two examples, and one of one and a padding row.
  job = Job(mode="train", config={"trainer.train_steps": 2}, num_examples=6, batch_size=3)
  whole = stack.run(folder / "whole", job)
  parts = stack.run(folder / "parts", job.but(config={**job.config, "trainer.gradient_accumulation_steps": 2}))
  near = all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(whole.weights, parts.weights, strict=True))
  check(near, f"in two parts the weights become {parts.weights[0].ravel()}, at once {whole.weights[0].ravel()}")
  check(parts.updates == whole.updates, f"in two parts {parts.updates} updates are counted, at once {whole.updates}")
