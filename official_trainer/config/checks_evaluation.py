"""What must fit together in the evaluation sets, and in the rules that end a run early."""

import os
import re
from collections.abc import Iterator

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
    if owner := _owner(config, name):
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
