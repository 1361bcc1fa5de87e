"""Faults in how a run is configured, and in what its folder is taken for."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.faults.probe import probe
from tests.faults.stack import Job, Stack
from tests.faults.values import check, latest

RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"


@probe(19)
def an_evaluation_without_a_checkpoint_scores_random_weights(stack: Stack, folder: Path) -> None:
  done = stack.attempt(folder / "no such run", Job(mode="eval"))
  check(done.error is not None, f"random weights were scored: {dict(done.logs)}")
  check("checkpoint" in str(done.error), f"the error does not say what is missing: {done.error}")


@probe(38)
def a_new_run_in_an_old_folder_goes_on_with_the_old_one(stack: Stack, folder: Path) -> None:
  stack.run(folder, Job(mode="train"))
  before = (folder / "params.yaml").read_text("utf-8")
  other = stack.attempt(folder, Job(mode="train", config={RATE: 0.25, "trainer.train_steps": 8}))
  check(other.error is not None, f"a run with another learning rate went on to step {other.step} in the old folder")
  check("learning_rate" in str(other.error), f"the error does not name the key that differs: {other.error}")
  check((folder / "params.yaml").read_text("utf-8") == before, "the old run's params.yaml was overwritten")
  check(latest(folder).name == "ckpt-6", f"the newest checkpoint is {latest(folder).name}")


@probe(58)
def a_number_is_taken_for_text(stack: Stack, folder: Path) -> None:
  file = folder / "numbers.yaml"
  file.write_text(
    "trainer:\n  train_steps: 1e5\n  optimizer_config:\n    learning_rate:\n      type: constant\n"
    "      constant: {learning_rate: 1e-3}\n",
    "utf-8",
  )
  text = f"trainer.train_steps=1e5,trainer.optimizer_config.learning_rate.type=constant,{RATE}=1e-3"
  for config in (stack.parse(files=[str(file)]), stack.parse(overrides=text)):
    rate = config.trainer.optimizer_config.learning_rate.constant.learning_rate
    check(rate == 0.001 and isinstance(rate, float), f"1e-3 became {rate!r}")
    steps = config.trainer.train_steps
    check(steps == 100000 and isinstance(steps, int), f"train_steps=1e5 became {steps!r}")
  for wrong in ("10.5", "abc"):
    try:
      config = stack.parse(overrides=f"trainer.train_steps={wrong}")
    except (ValueError, TypeError) as error:
      check("train_steps" in str(error), f"the error about {wrong!r} does not name the key: {error}")
    else:
      raise AssertionError(f"train_steps={wrong} was accepted as {config.trainer.train_steps!r}")


@probe(59)
def a_saved_config_cannot_be_read_back(stack: Stack, folder: Path) -> None:
  stack.run(folder / "run", Job(mode="train", config={"trainer.train_steps": 3, RATE: 1e-3}))
  file = str(folder / "run" / "params.yaml")
  again = stack.parse(files=[file])
  check(again.trainer.train_steps == 3, f"train_steps was 3, read back {again.trainer.train_steps!r}")
  check(again.trainer.optimizer_config.learning_rate.constant.learning_rate == 1e-3, "the learning rate was lost")
  try:
    alone = stack.parse(files=[file], experiment=None)
  except (ValueError, KeyError, TypeError) as error:
    raise AssertionError(f"params.yaml alone does not say what it is: {error}") from error
  check(alone.trainer == again.trainer, "params.yaml alone gives another config")


@probe(60)
def a_flag_that_was_not_given_overwrites_a_value(stack: Stack, folder: Path) -> None:
  file = folder / "tpu.yaml"
  file.write_text(yaml.safe_dump({"runtime": {"tpu": "grpc://10.0.0.2"}, "trainer": {"train_steps": 5}}), "utf-8")
  later = folder / "later.yaml"
  later.write_text(yaml.safe_dump({"trainer": {"train_steps": 6, "max_to_keep": 3}}), "utf-8")
  config = stack.parse(files=[str(file), str(later)], overrides="trainer.max_to_keep=4")
  check(config.trainer.train_steps == 6, f"the later file says 6 steps, the config {config.trainer.train_steps}")
  check(config.trainer.max_to_keep == 4, f"the override says 4, the config {config.trainer.max_to_keep}")
  check(config.runtime.tpu == "grpc://10.0.0.2", f"the file's TPU became {config.runtime.tpu!r}, by no flag at all")


@probe(64)
def a_keras_3_model_fails_deep_inside(stack: Stack, folder: Path) -> None:
  done = stack.attempt(folder, Job(mode="train", layers="keras 3"))
  check(done.error is not None, "a Keras 3 model was trained, as if it were one of tf-keras")
  text = str(done.error)
  check("tf_keras" in text and "Keras 3" in text, f"the error does not say what is wrong: {text[:200]}")


@probe(73)
def settings_have_no_description(stack: Stack, folder: Path) -> None:
  missing = stack.undocumented_settings()
  check(not missing, f"no text says what these do: {', '.join(missing)}")
