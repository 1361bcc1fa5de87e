"""What must fit together in the evaluation sets, and in the rules that end a run early."""

import os
import re
from collections.abc import Iterator
from typing import Any

from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import Problem

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = ("train", "validation", "eval", "checkpoint", "crashes", "broken_checkpoints")
"""Modes of the history, and what lies in every model_dir."""


def evaluation_sets(config: ExperimentConfig) -> Iterator[Problem]:
  """Names that would meet others, and settings that an evaluation has no use for."""
  for name, data in config.task.evaluation_sets.items():
    path = f"task.evaluation_sets.{name}"
    if not _NAME.fullmatch(name):
      yield Problem(path, f"must be named with letters, digits and underscores, a letter first, got '{name}'.")
    elif owner := _owner(config, name):
      yield Problem(
        path, f"'{name}' is {owner}. Choose another name: it is that of a folder and of rows of the history."
      )
    if data.is_training:
      message = "must not be true: an evaluation takes every example once, in order, without augmentation."
      yield Problem(f"{path}.is_training", f"{message}\nSay which examples by tfds_split or input_path.")
    if data.skip_steps:
      yield Problem(f"{path}.skip_steps", "has no effect: an evaluation takes every example once.")


def continued_evaluation(config: ExperimentConfig) -> Iterator[Problem]:
  trainer = config.trainer
  if not trainer.recreate_iterator_for_each_eval and trainer.validation_steps == -1:
    message = "has no effect while trainer.validation_steps is -1: each evaluation takes the whole set."
    yield Problem("trainer.recreate_iterator_for_each_eval", message)


def early_ends(config: ExperimentConfig) -> Iterator[Problem]:
  """Rules that could never end a run, or name nothing."""
  trainer = config.trainer
  for key, rule in _ending_rules(config).items():
    if not rule.metric:
      yield Problem(f"{key}.metric", "must name a metric.")
  early, target = trainer.early_stop, trainer.stop_at
  if target is not None and target.value is None:
    yield Problem("trainer.stop_at.value", "must be set.")
  if early is not None and trainer.train_steps and early.start_step >= trainer.train_steps:
    message = f"must be less than trainer.train_steps ({trainer.train_steps}), got {early.start_step}."
    yield Problem("trainer.early_stop.start_step", f"{message}\nThe rule would never be looked at.")


def ends_in_mode(config: ExperimentConfig, mode: str) -> Iterator[Problem]:
  """Rules that need evaluations, in a mode that has none before the end."""
  if mode in ("train", "train_and_post_eval"):
    plateaus = [f"trainer.schedules.{name}" for name, one in config.trainer.schedules.items() if one.type == "plateau"]
    for key in (*_ending_rules(config), *plateaus):
      yield Problem(key, f"needs evaluations during training, and --mode={mode} has none. Use --mode=train_and_eval.")


def _ending_rules(config: ExperimentConfig) -> dict[str, Any]:
  rules = {"trainer.early_stop": config.trainer.early_stop, "trainer.stop_at": config.trainer.stop_at}
  return {key: rule for key, rule in rules.items() if rule is not None}


def _owner(config: ExperimentConfig, name: str) -> str | None:
  """Says whose name it is already, or returns None."""
  trainer = config.trainer
  if name in _TAKEN:
    return "taken"
  if name == os.path.normpath(trainer.validation_summary_subdir).partition("/")[0]:
    return "the folder of trainer.validation_summary_subdir"
  metrics = [trainer.best_checkpoint_eval_metric, *(rule.eval_metric for rule in trainer.best_checkpoints)]
  if name in [f"best_{metric}" for metric in metrics]:
    return "the name under which an evaluation reports a best value"
  folders = {"trainer.best_checkpoint_export_subdir": trainer.best_checkpoint_export_subdir}
  folders |= {f"trainer.best_checkpoints.{i}.subdir": rule.subdir for i, rule in enumerate(trainer.best_checkpoints)}
  return next(
    (f"the folder of {key}" for key, path in folders.items() if path.strip("/").partition("/")[0] == name), None
  )
