"""Faults of the best weights: which they are, what is on disk, what is recorded."""

from __future__ import annotations

import math
from pathlib import Path

from tests.faults.probe import probe
from tests.faults.stack import BEST_SCORE, EMA, Job, Outcome, Stack, checkpoint_steps, crash_before_batch
from tests.faults.values import best_prefix, best_record, check, latest, model_weights, read_checkpoint, same_bits

NAN = math.nan
BY_LOSS = {
  "trainer.best_checkpoint_export_subdir": "best_ckpt",
  "trainer.best_checkpoint_eval_metric": "validation_loss",
}


def require_best(folder: Path, done: Outcome, step: int, score: float) -> None:
  """Checks that record and weights on disk are those of the evaluation of this step."""
  record = best_record(folder)
  check(record.get("score") == score, f"the record of the best is {record}; it should be {score} of step {step}")
  weights = model_weights(best_prefix(folder))
  check(same_bits(weights, done.eval_weights[step]), f"the best weights on disk are not those evaluated at step {step}")


@probe(3)
def one_nan_blocks_every_later_best(stack: Stack, folder: Path) -> None:
  for direction, sign in (("higher", 1.0), ("lower", -1.0)):
    job = Job(config={**BEST_SCORE, "trainer.best_checkpoint_metric_comp": direction})
    for place, scores in {"start": (NAN, 1.0, 2.0), "middle": (1.0, NAN, 2.0), "end": (1.0, 2.0, NAN)}.items():
      values = dict(zip((2, 4, 6), scores, strict=True))
      done = stack.run(folder / direction / place, job.but(score=lambda step, v=values, s=sign: s * v.get(step, 0)))
      step = next(step for step, value in values.items() if value == 2.0)
      require_best(folder / direction / place, done, step, sign * 2.0)


@probe(4)
def the_record_of_the_best_is_ahead_of_its_weights(stack: Stack, folder: Path) -> None:
  job = Job(config=BEST_SCORE, score=lambda step: {2: 0.5, 4: 0.9}.get(step, 0.8))
  stack.attempt(folder, job.but(on_train=crash_before_batch(3)))
  check(best_record(folder).get("score") == 0.5, "the first evaluation did not become the best")
  with stack.failing_best_export():
    stack.attempt(folder, job)  # It ends while the weights of 0.9 are written.
  done = stack.run(folder, job)
  best = max(done.eval_weights, key=lambda step: {4: 0.9}.get(step, 0.8 if step > 2 else 0.5))
  require_best(folder, done, best, {4: 0.9}.get(best, 0.8))


@probe(17)
def the_best_is_forgotten_by_a_restart(stack: Stack, folder: Path) -> None:
  for name, average in (("raw", {}), ("averaged", {f"{EMA}.average_decay": 0.5})):
    place = folder / name
    job = Job(config={**BEST_SCORE, **average}, score=lambda step: 0.9 if step == 2 else 0.5)
    first = stack.attempt(place, job.but(on_train=crash_before_batch(3)))
    stack.run(place, job)
    require_best(place, first, 2, 0.9)


@probe(48)
def an_evaluation_that_never_gave_a_number_crashes_the_end(stack: Stack, folder: Path) -> None:
  done = stack.run(folder, Job(config=BEST_SCORE, score=lambda step: NAN))
  check(done.step == 6, f"the run ended at step {done.step}")
  check(latest(folder).name == "ckpt-6", f"the newest checkpoint is {latest(folder).name}")
  check(not best_record(folder), f"NaN was recorded as the best: {best_record(folder)}")


@probe(77)
def the_best_weights_do_not_give_the_value_that_chose_them(stack: Stack, folder: Path) -> None:
  for name, average in (("raw", {}), ("averaged", {f"{EMA}.average_decay": 0.5})):
    config = {**BY_LOSS, "trainer.best_checkpoint_metric_comp": "lower", **average}
    place = folder / name
    # The later steps are taken with a rate that leads away, so that the best is not the last.
    stack.run(place, Job(config={**config, "trainer.optimizer_config.learning_rate.constant.learning_rate": 0.4}))
    record = best_record(place)
    again = stack.run(folder / f"{name} again", Job(mode="eval", config=config, checkpoint=str(place / "best_ckpt")))
    value = float(again.logs["validation_loss"])
    check(value == record["validation_loss"], f"{name}: evaluated {value}, recorded {record['validation_loss']}")


@probe(31)
def a_misspelt_metric_is_found_after_hours(stack: Stack, folder: Path) -> None:
  config = {**BEST_SCORE, "trainer.best_checkpoint_eval_metric": "scroe"}
  done = stack.attempt(folder, Job(config=config, score=lambda step: 1.0))
  check(done.error is not None, "a metric that nobody reports was accepted")
  check(not done.trained, f"{len(done.trained)} steps were done before it was noticed")
  check("'score'" in str(done.error) or " score" in str(done.error), f"the right name is not suggested: {done.error}")


@probe(32)
def the_direction_of_a_metric_is_taken_the_wrong_way(stack: Stack, folder: Path) -> None:
  done = stack.attempt(folder / "loss", Job(config=BY_LOSS))
  if done.error is None:
    best = best_record(folder / "loss")["best_ckpt_global_step"]
    check(best == 6, f"the loss falls until step 6; the best is said to be that of step {best}")
  config = {**BEST_SCORE, "trainer.best_checkpoint_metric_comp": "max"}
  wrong = stack.attempt(folder / "max", Job(config=config, score=lambda step: 1.0))
  check(wrong.error is not None and not wrong.trained, "'max' was accepted as a direction")
  check("higher" in str(wrong.error) and "lower" in str(wrong.error), f"the words allowed are not named: {wrong.error}")


@probe(18)
def the_best_weights_vanish_with_old_checkpoints(stack: Stack, folder: Path) -> None:
  config = {
    "trainer.train_steps": 10,
    "trainer.checkpoint_interval": 3,
    "trainer.max_to_keep": 1,
    "trainer.best_checkpoint_export_subdir": "best_ckpt",
    "trainer.best_checkpoint_eval_metric": "score",
    "trainer.best_checkpoint_metric_comp": "higher",
  }
  done = stack.run(folder, Job(config=config, score=lambda step: 0.9 if step == 2 else 0.1))
  best = read_checkpoint(next((folder / "best_ckpt").glob("*.index")).with_suffix(""))
  kernel = next(value for name, value in best.items() if name.startswith("model/") and "/kernel/" in name)
  check(same_bits([kernel], done.eval_weights[2][:1]), "the best folder does not hold the weights of step 2")
  check(checkpoint_steps(folder) == [10], f"checkpoints {checkpoint_steps(folder)}, the last one is of step 10")
  resumed = stack.run(folder, Job(config={**config, "trainer.train_steps": 12}, allowed_changes=["trainer"],
                                  score=lambda step: 0.1))  # fmt: skip
  check(len(resumed.trained) == 2, f"the run went on with {len(resumed.trained)} steps from 10 to 12")
