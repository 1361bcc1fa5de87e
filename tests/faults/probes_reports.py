"""Faults in when things happen, and in what is said about them."""

from __future__ import annotations

from pathlib import Path

from tests.faults.probe import probe
from tests.faults.stack import Job, Stack, checkpoint_steps, crash_before_batch
from tests.faults.values import check, points


@probe(57)
def the_speed_includes_the_evaluation(stack: Stack, folder: Path) -> None:
  seconds = [0.0]

  def passes(secs: float):
    def pass_by(ids) -> None:
      seconds[0] += secs

    return pass_by

  config = {"trainer.train_steps": 12, "trainer.steps_per_loop": 2, "trainer.validation_interval": 4}
  job = Job(config=config, on_train=passes(0.25), on_eval=passes(100.0), clock=lambda: seconds[0])
  stack.run(folder, job)
  speeds = dict(points(folder / "train", "steps_per_second"))
  for step, speed in speeds.items():
    check(abs(speed - 4.0) < 0.01, f"4 steps a second were done, {speed:.3f} are reported at step {step}")


@probe(61)
def intervals_are_off_by_one_or_off_their_grid(stack: Stack, folder: Path) -> None:
  config = {"trainer.train_steps": 16, "trainer.steps_per_loop": 3, "trainer.summary_interval": 3,
            "trainer.checkpoint_interval": 5}  # fmt: skip
  stack.run(folder / "saves", Job(mode="train", config=config))
  saved = [step for step in checkpoint_steps(folder / "saves") if step]
  check(saved == [5, 10, 15, 16], f"every 5 of 16 steps means {saved}")
  every = {"trainer.checkpoint_interval": 5, "trainer.validation_interval": 8, "trainer.train_steps": 20,
           "trainer.steps_per_loop": 1, "trainer.summary_interval": 1}  # fmt: skip
  stack.attempt(folder / "evals", Job(config=every, on_train=crash_before_batch(6)))
  done = stack.run(folder / "evals", Job(config=every))
  steps = [step for step in done.eval_weights if step]
  check(steps == [8, 16, 20], f"every 8 steps, resumed at 5, means {steps}")


@probe(69)
def curves_fold_back_after_a_restart(stack: Stack, folder: Path) -> None:
  config = {"trainer.train_steps": 16, "trainer.checkpoint_interval": 5}
  job = Job(mode="train", config=config, shuffle=True)
  stack.attempt(folder, job.but(on_train=crash_before_batch(13)))
  stack.run(folder, job)
  steps = [step for step, _ in points(folder / "train", "training_loss")]
  check(steps == [2, 4, 6, 8, 10, 12, 14, 16], f"the curve of the training loss has points at {steps}")


@probe(70)
def the_log_is_flooded(stack: Stack, folder: Path) -> None:
  def said(steps: int) -> str:
    config = {"trainer.train_steps": steps, "trainer.steps_per_loop": 10, "trainer.summary_interval": 10,
              "trainer.checkpoint_interval": 200}  # fmt: skip
    return stack.run(folder / str(steps), Job(mode="train", config=config)).said

  short, long = said(10), said(200)
  check("\r" not in long, "carriage returns in a log that is no terminal")
  # What a run says at its start and at its end, it says once.
  one, twenty = (sum("step" in line for line in text.splitlines()) for text in (short, long))
  check(twenty - one <= 19, f"19 more loops of 10 steps gave {twenty - one} more lines")
