"""What must fit together among the settings that say where weights come from."""

import re
from collections.abc import Iterator

from official_trainer.checkpoint.config import INIT_KEYS, InitConfig
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import Problem


def initialisation_problems(config: ExperimentConfig) -> Iterator[Problem]:
  """Yields what is wrong with `task.init`, `task.init_backbone` and `task.init_checkpoint`."""
  task_config = config.task
  for name in INIT_KEYS:
    if (rules := getattr(task_config, name)) is not None:
      yield from _rules(f"task.{name}", rules)
  if task_config.init is not None and task_config.init_checkpoint:
    message = (
      f"must be empty where task.init is given, got {task_config.init_checkpoint!r}: both fill the same variables.\n"
      "Leave one of them out."
    )
    yield Problem("task.init_checkpoint", message)


def _rules(key: str, rules: InitConfig) -> Iterator[Problem]:
  if not rules.checkpoint:
    yield Problem(f"{key}.checkpoint", f"must name a file or a folder. To initialise from nothing, set '{key}=null'.")
  for field in ("name_map", "resize"):
    for index, (pattern, text) in enumerate(getattr(rules, field)):
      # With an empty alternative every pattern matches, so that the replacement is read here and not in the run.
      if error := _error_of(pattern) or (_error_of(f"{pattern}|", text) if field == "name_map" else None):
        yield Problem(f"{key}.{field}.{index}", f"{error}, got {[pattern, text]}.")
  for index, pattern in enumerate(rules.skip):
    if error := _error_of(pattern):
      yield Problem(f"{key}.skip.{index}", f"{error}, got {pattern!r}.")


def _error_of(pattern: str, replacement: str = "") -> str | None:
  try:
    re.sub(pattern, replacement, "")
  except (re.error, IndexError) as error:
    return f"must be a regular expression and a replacement for it ({error})" if replacement else _not_a_pattern(error)
  return None


def _not_a_pattern(error: Exception) -> str:
  return f"must be a regular expression ({error})"
