"""The weights of a fresh run, from the sources that its task's config names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import tf_keras

from official_trainer.checkpoint.config import INIT_KEYS, InitConfig, InitSettings, has_pretrained_source
from official_trainer.checkpoint.init_from import Initialisation, planned
from official_trainer.checkpoint.init_report import InitReport
from official_trainer.checkpoint.weight_source import locate_source
from official_trainer.config import foreign
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import CheckpointMismatch, ConfigError, Problem, gathered
from official_trainer.optim.variable_paths import variable_paths
from official_trainer.task import Task


def initialise(model: tf_keras.Model, task_config: Any) -> list[InitReport]:
  """Fills a model's variables from `task.init`, and those to which that gives nothing from `task.init_backbone`.

  Nothing is assigned unless all of it fits. Call under the strategy's scope; every process reads the same files.

  Args:
    model: the built model.
    task_config: a TaskConfig, or any object; one without these settings changes nothing.

  Returns:
    A report for each source, in this order.

  Raises:
    ConfigError: if a file cannot be read, or a prefix, a pattern or a name of a function matches nothing.
    CheckpointMismatch: if a variable has no value or one that does not fit, and is not skipped; with all of them.
  """
  named = variable_paths(model)
  found: list[Initialisation] = []
  given: set[str] = set()
  problems: list[Problem] = []
  with contextlib.ExitStack() as stack:
    for key, rules in sources(task_config).items():
      with gathered(problems):
        one = stack.enter_context(planned(model, named, rules, key, given=given, paths_of=variable_paths))
        given |= one.report.loaded.keys()
        found.append(one)
    if problems:
      raise ConfigError(problems)
    _require_complete(found, sources(task_config))
    for one in found:
      one.apply()
  return [one.report for one in found]


def require_sources(task_config: Any) -> None:
  """Checks that the files which `initialise` will read are there. Cheap: call before anything is built.

  Raises:
    ConfigError: with every one that is not there or cannot be read.
  """
  problems: list[Problem] = []
  for key, rules in sources(task_config).items():
    with gathered(problems):
      locate_source(rules.checkpoint, f"{key}.checkpoint")
  if problems:
    raise ConfigError(problems)


def require_statistics(options: TrainerConfig, task: Any, *, is_given: bool) -> None:
  """Checks that statistics of batch normalisation that are frozen come from somewhere.

  Args:
    options: the trainer config.
    task: the task; one that overrides `initialize` brings weights by itself.
    is_given: whether a checkpoint was given by hand.

  Raises:
    ConfigError: if they would stay those of a new layer, which normalise nothing.
  """
  is_found, keys = has_pretrained_source(task.task_config)
  brings_its_own = type(task).initialize is not Task.initialize
  if not options.batch_norm.freeze_statistics or is_found or is_given or brings_its_own:
    return
  raise ConfigError.of(
    "trainer.batch_norm.freeze_statistics",
    "needs statistics that were trained: those of a new layer, mean 0 and variance 1, would normalise nothing.\n"
    f"Set one of {', '.join(keys)}, give --checkpoint, or leave the statistics free.",
  )


def sources(task_config: Any) -> Mapping[str, InitConfig]:
  """Maps the key of each source that a task's config names to its rules, the first one first."""
  settings = foreign.read(InitSettings, task_config)
  rules = {f"task.{name}": getattr(settings, name) for name in INIT_KEYS}
  return {key: rule for key, rule in rules.items() if rule is not None and rule.checkpoint}


def _require_complete(found: list[Initialisation], sources: Mapping[str, InitConfig]) -> None:
  texts = []
  for one in found:
    try:
      one.report.require_complete(allow_unused=sources[one.report.key].allow_unused)
    except CheckpointMismatch as error:
      texts.append(str(error))
  if texts:
    raise CheckpointMismatch("\n".join(texts))
