"""Faults of averaged weights, and of what happens to the raw ones meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.faults.probe import probe
from tests.faults.stack import EMA, Job, Outcome, Stack, crash_before_batch
from tests.faults.values import all_finite, check, model_weights, same_bits

AVERAGE = {f"{EMA}.average_decay": 0.9}


def undisturbed(stack: Stack, folder: Path, job: Job, steps: int) -> list[np.ndarray]:
  """Returns the raw weights after `steps` of a run that never evaluates."""
  return stack.run(folder, job.but(mode="train", config={"trainer.train_steps": steps}, on_eval=None)).weights


@probe(7)
def training_goes_on_with_averages_after_an_evaluation_that_failed(stack: Stack, folder: Path) -> None:
  job = Job(config=AVERAGE)
  raw = undisturbed(stack, folder / "raw", job, 2)

  class Failed(Exception):
    pass

  for error in (Failed("an error in an evaluation"), KeyboardInterrupt()):

    def fails(ids: np.ndarray, error: BaseException = error) -> None:
      raise error

    done = stack.attempt(folder / type(error).__name__, job.but(on_eval=fails))
    check(done.error is not None and done.step == 2, f"the evaluation at step 2 did not fail but ended at {done.step}")
    check(same_bits(done.weights, raw), f"after {type(error).__name__} in an evaluation the raw weights are not back")


@probe(8)
def a_checkpoint_written_during_an_evaluation_holds_averages_for_weights(stack: Stack, folder: Path) -> None:
  job = Job(config={**AVERAGE, "trainer.train_steps": 4, "trainer.validation_interval": 4})
  raw = undisturbed(stack, folder / "raw", job, 4)
  prefix = folder / "asked for"
  seen = Outcome()

  def saves(step: int) -> float:
    if step == 4:
      stack.save_now(seen.trainer, str(prefix))
    return 0.0

  stack.execute(str(folder / "run"), job.but(score=saves), seen)
  evaluated = seen.eval_weights[4]
  check(not same_bits(evaluated, raw), "the evaluation did not use the averages: nothing is shown")
  check(same_bits(model_weights(prefix), raw), "under the model's name there are not the raw weights")


@probe(9)
def averages_are_used_before_there_are_any(stack: Stack, folder: Path) -> None:
  job = Job(config={**AVERAGE, f"{EMA}.start_step": 4, f"{EMA}.dynamic_decay": False})
  # A rate of nothing: the weights stay what they were, and so must every average of them.
  still = job.but(config={"trainer.optimizer_config.learning_rate.constant.learning_rate": 1e-30})
  initial = [np.asarray(job.initial, np.float32)[:, None], np.zeros(1, np.float32)]
  done = stack.run(folder / "still", still)
  for step in (2, 4, 6):
    check(np.allclose(done.eval_weights[step][0], initial[0], rtol=1e-6),
          f"the weights were {initial[0].ravel()} all the time, their average at step {step} is"
          f" {done.eval_weights[step][0].ravel()}")  # fmt: skip
  early = stack.run(folder / "early", job)
  check(same_bits(early.eval_weights[2], undisturbed(stack, folder / "raw", Job(), 2)),
        "before its start step the average is not the weights themselves")  # fmt: skip
  # An evaluation before the first step: there is nothing yet to average but the weights as they are.
  first = stack.evaluate_untrained(str(folder / "untrained"), job)
  check(same_bits(first.eval_weights[0], initial), f"before the first step {first.eval_weights[0]} is evaluated")


@probe(24)
def a_swap_of_averages_loses_bits_of_the_weights(stack: Stack, folder: Path) -> None:
  # A slow average of weights that move fast: the two differ in magnitude.
  config = {f"{EMA}.average_decay": 0.99, f"{EMA}.dynamic_decay": False}
  job = Job(config=config, initial=(3e-9, 0.7, -30.0))
  done = stack.run(folder / "swapped", job)
  raw = undisturbed(stack, folder / "raw", job, 6)
  check(same_bits(done.weights, raw), f"weights {raw[0].ravel()} became {done.weights[0].ravel()} by being evaluated")
  once = stack.run(folder / "once", job.but(config={"trainer.validation_interval": 6}))
  before, after = once.eval_weights[6], done.eval_weights[6]
  check(same_bits(before, after), f"averages {before[0].ravel()} became {after[0].ravel()} by being used")


@probe(25)
def averages_do_not_run_under_float16(stack: Stack, folder: Path) -> None:
  for scale in ("dynamic", 128.0):
    half = {"runtime.mixed_precision_dtype": "float16", "runtime.loss_scale": scale}
    done = stack.run(folder / str(scale), Job(config={**AVERAGE, **half}))
    check(done.step == 6 and all_finite(done.weights), f"loss scale {scale}: ended at step {done.step}")
    check(not same_bits(done.eval_weights[6], done.weights), f"loss scale {scale}: the averages were not evaluated")


@probe(41)
def averaged_kernels_are_evaluated_with_raw_statistics(stack: Stack, folder: Path) -> None:
  job = Job(config=AVERAGE, layers="batchnorm")
  done = stack.run(folder / "run", job)
  raw = undisturbed(stack, folder / "raw", job, 6)
  model = done.trainer.model
  for variable, evaluated, own in zip(model.variables, done.eval_weights[6], raw, strict=True):
    if "moving_" in variable.name:
      check(not same_bits([evaluated], [own]), f"{variable.name} is raw while the kernels are averages")
  check(same_bits(done.weights, raw), "after the evaluations the raw weights and statistics are not back")


@probe(26)
def the_average_is_thrown_away_after_a_restart(stack: Stack, folder: Path) -> None:
  job = Job(config={f"{EMA}.average_decay": 0.9, "trainer.validation_interval": 6}, num_examples=4, batch_size=4)
  whole = stack.run(folder / "whole", job)
  stack.attempt(folder / "two", job.but(on_train=crash_before_batch(4)))
  resumed = stack.run(folder / "two", job)
  check(len(resumed.trained) == 2, f"{len(resumed.trained)} steps were done from step 4 to 6")
  check(same_bits(whole.eval_weights[6], resumed.eval_weights[6]), "the average after a restart is another one")
