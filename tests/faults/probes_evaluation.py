"""Faults in what an evaluation counts, and in how often."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.faults import tiny_task
from tests.faults.probe import probe
from tests.faults.stack import BEST_SCORE, Job, Outcome, Stack
from tests.faults.values import best_record, check, points

AT_THE_END = {"trainer.validation_interval": 6}
ONE_STEP = {"trainer.train_steps": 1, "trainer.validation_interval": 1}


def validation_loss(done: Outcome) -> float:
  return float(done.logs["validation_loss"])


def require_mean(job: Job, done: Outcome) -> None:
  """Checks that the loss is the mean over the examples, but for rounding in float32."""
  expected = tiny_task.squared_errors(job, done.weights).mean()
  loss = validation_loss(done)
  check(abs(loss - expected) < 1e-5 * expected, f"the loss is {loss}, the mean over the examples {expected}")


@probe(5)
def the_validation_loss_depends_on_the_batch_size(stack: Stack, folder: Path) -> None:
  for batch_size in (3, 4, 10):
    job = Job(config=AT_THE_END, eval_batch_size=batch_size)
    require_mean(job, stack.run(folder / str(batch_size), job))


@probe(6)
def a_replica_without_examples_turns_the_loss_into_nan(stack: Stack, folder: Path) -> None:
  job = Job(config=AT_THE_END, num_replicas=2, num_validation=5)
  done = stack.run(folder, job)
  check(np.isfinite(validation_loss(done)), f"the loss is {validation_loss(done)}")
  require_mean(job, done)


@probe(20)
def an_empty_validation_set_scores_perfectly(stack: Stack, folder: Path) -> None:
  config = {**BEST_SCORE, **AT_THE_END, "trainer.best_checkpoint_eval_metric": "num_examples"}
  done = stack.attempt(folder, Job(config=config, num_validation=0))
  check(done.error is not None, f"nothing was evaluated, and the result is {dict(done.logs)}")
  check("empty" in str(done.error), f"the error does not say that the set is empty: {done.error}")
  check(not best_record(folder), "weights that nobody evaluated became the best")


@probe(21)
def an_evaluation_leaves_out_the_remainder(stack: Stack, folder: Path) -> None:
  for number, job in enumerate((Job(), Job(eval_batch_size=3), Job(num_replicas=2, eval_batch_size=6))):
    done = stack.run(folder / str(number), job.but(config=AT_THE_END))
    seen = sorted(i for batch in done.evaluated for i in batch)
    check(seen == list(range(10)), f"10 examples, evaluated: {seen}")


@probe(30)
def the_last_batch_is_logged_for_the_whole_loop(stack: Stack, folder: Path) -> None:
  rate = {"trainer.optimizer_config.learning_rate.constant.learning_rate": 1e-30}
  job = Job(config=rate)
  done = stack.run(folder, job)
  features, labels = tiny_task.examples(job, training=True)
  kernel = np.asarray(job.initial, np.float64)
  errors = np.square(features[:, : tiny_task.WEIGHTS] @ kernel - labels[:, 0])
  logged = dict(points(folder / "train", "training_loss"))
  check(sorted(logged) == [2, 4, 6], f"training losses were logged at {sorted(logged)}")
  check(abs(logged[2] - errors[:8].mean()) < 1e-5, f"{logged[2]} is logged for two batches of {errors[:8].mean()}")
  shown = dict(points(folder / "validation", "validation_loss"))[6]
  check(shown == np.float32(validation_loss(done)), f"{shown} is in the event file, {validation_loss(done)} returned")


@probe(37)
def a_loss_that_is_nan_is_hidden_from_the_log(stack: Stack, folder: Path) -> None:
  config = {"trainer.recovery_max_trials": -1, "trainer.train_steps": 3, "trainer.steps_per_loop": 3,
            "trainer.summary_interval": 3}  # fmt: skip
  stack.attempt(folder, Job(mode="train", config=config, nan_ids=[5]))
  logged = dict(points(folder / "train", "training_loss"))
  check(np.isnan(logged.get(3, np.nan)), f"one loss of three was NaN; logged: {logged}")


@probe(46)
def sums_shrink_with_the_number_of_replicas(stack: Stack, folder: Path) -> None:
  for num_replicas in (1, 2, 3):
    job = Job(config=ONE_STEP, num_replicas=num_replicas, batch_size=6, eval_batch_size=6, num_validation=10)
    counted = float(stack.run(folder / str(num_replicas), job).logs["num_examples"])
    check(counted == 10, f"{num_replicas} replicas counted {counted} of 10 examples")


@probe(47)
def a_late_evaluator_skips_checkpoints(stack: Stack, folder: Path) -> None:
  stack.run(folder, Job(mode="train"))
  waits = {"trainer.continuous_eval_timeout": 1}
  done = stack.run(folder, Job(mode="continuous_eval", config=waits))
  steps = [step for step in done.eval_weights if step > 0]
  check(steps == [2, 4, 6], f"checkpoints of steps 2, 4 and 6 were there; evaluated: {steps}")

  def removes_the_next(ids: np.ndarray) -> None:
    for path in folder.glob("ckpt-4.*"):
      path.unlink()

  late = stack.run(folder, Job(mode="continuous_eval", config=waits, on_eval=removes_the_next))
  steps = [step for step in late.eval_weights if step > 0]
  check(steps == [2, 6], f"the checkpoint of step 4 vanished while that of 2 was evaluated; evaluated: {steps}")


@probe(54)
def memory_grows_with_the_size_of_an_evaluation(stack: Stack, folder: Path) -> None:
  grown: list[int] = []
  job = Job(config=ONE_STEP, layers="wide", num_validation=1200, on_eval=lambda ids: grown.append(resident_bytes()))
  stack.run(folder, job)
  check(len(grown) == 300, f"{len(grown)} batches of 1 MB were evaluated")
  check(grown[-1] - grown[20] < 100e6, f"280 batches of 1 MB took {(grown[-1] - grown[20]) / 1e6:.0f} MB more")


@probe(67)
def every_evaluation_costs_more_memory(stack: Stack, folder: Path) -> None:
  after: list[int] = []

  def remember(step: int) -> float:
    after.append(resident_bytes())
    return 0.0

  done = stack.run(folder, Job(config={"trainer.train_steps": 60, "trainer.checkpoint_interval": 60}, score=remember))
  check(len(after) >= 30, f"{len(after)} evaluations were done, 30 were asked for")
  check(after[-1] < 1.05 * after[10], f"{after[10] / 1e6:.0f} MB after 10 rounds, {after[-1] / 1e6:.0f} MB after 30")
  check(done.traces["train"] <= 2 and done.traces["validation"] <= 2, f"traces: {done.traces}")


@probe(71)
def the_same_step_is_traced_again_and_again(stack: Stack, folder: Path) -> None:
  config = {"trainer.train_steps": 10, "trainer.steps_per_loop": 4, "trainer.summary_interval": 4,
            "trainer.validation_interval": 7, "trainer.checkpoint_interval": 5}  # fmt: skip
  done = stack.run(folder, Job(config=config))
  check(done.traces["train"] <= 2, f"the training step was traced {done.traces['train']} times")
  check(done.traces["validation"] <= 2, f"the validation step was traced {done.traces['validation']} times")


def resident_bytes() -> int:
  """Returns the memory this process has now."""
  pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
  return pages * 4096


@probe(72)
def there_is_only_one_validation_set(stack: Stack, folder: Path) -> None:
  stack.require_setting("task.evaluation_sets", "several validation sets")
  sets = {"a": 3, "b": 5}
  config = {
    f"task.evaluation_sets.{name}.{key}": value
    for name, size in sets.items()
    for key, value in {"tfds_split": str(size), "global_batch_size": 4}.items()
  }
  best = {**BEST_SCORE, "trainer.best_checkpoint_eval_metric": "b|validation_loss",
          "trainer.best_checkpoint_metric_comp": "lower"}  # fmt: skip
  done = stack.run(folder, Job(config={**config, **best}))
  for name, size in sets.items():
    seen = done.logs[name]["num_examples"]
    check(float(seen) == size, f"{seen} of {size} examples of {name!r} were evaluated")
    shown = dict(points(folder / name, "validation_loss"))
    check(sorted(shown) == [2, 4, 6], f"the curve of {name!r} has the steps {sorted(shown)}")
  losses = dict(points(folder / "b", "validation_loss"))
  step = min(losses, key=lambda step: losses[step])
  found = best_record(folder).get("best_ckpt_global_step")
  check(found == step, f"the best by the loss of 'b' is said to be that of step {found}, it is that of {step}")
