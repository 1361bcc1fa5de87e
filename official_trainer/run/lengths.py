"""What the durations of a run's config come to, once the size of its data is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from official_trainer.config import checks, steps
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.loading import LoadedExperiment
from official_trainer.errors import ConfigError, Problem
from official_trainer.run.data_size import DataSize

_CADENCES = {"steps_per_loop": "reports", "validation_interval": "evaluations", "checkpoint_interval": "checkpoints"}


def resolve_lengths(loaded: LoadedExperiment, mode: str, size: DataSize) -> tuple[ExperimentConfig, list[str]]:
  """Returns the config that a run is built from, every duration a number of steps, and a line on each for people.

  Raises:
    ConfigError: with every duration that stands for no number, or else what does not fit together in numbers; each with
      where it was written.
  """
  try:
    config, lines = steps.resolve(loaded.config, size.train, size.validation)
    problems = tuple(checks.problems(config, mode)) if lines else ()
  except ConfigError as error:
    problems = error.problems
  if problems:
    raise ConfigError((_with_origin(problem, loaded) for problem in problems), loaded.name)
  return config, lines


def notes(loaded: LoadedExperiment, config: ExperimentConfig, mode: str, known: int | None) -> Iterator[str]:
  """Yields lines on the lengths of a training run that were written in steps.

  Args:
    loaded: the config as written.
    config: the same in steps.
    mode: how it is run.
    known: the number of training examples by the input's own account, None where it has none.
  """
  trainer = config.trainer
  data = config.task.train_data
  if known and trainer.train_steps == loaded.config.trainer.train_steps:
    epochs = trainer.train_steps * data.global_batch_size / known
    yield (
      f"trainer.train_steps: {trainer.train_steps:,} steps = {epochs:,.4g} epochs "
      f"({known:,} examples, batch {data.global_batch_size:,})"
    )
  every = [
    f"{what} every {getattr(trainer, name):,} ({loaded.origin(f'trainer.{name}').layer})"
    for name, what in _CADENCES.items()
    if what != "evaluations" or mode == "train_and_eval"
  ]
  yield f"steps between two: {', '.join(every)}"


def size_warning(counted: int | None, written: int | None, known: int | None) -> str | None:
  """Says that durations in epochs were counted with another size than that of the input.

  Args:
    counted: the number of examples at the first start of the run, if a duration needed it.
    written: `task.train_data.num_examples`.
    known: the number by the input's own account, None where it has none.
  """
  used = written or counted
  if used is None or known is None or used == known:
    return None
  source = "task.train_data.num_examples says" if written else "there were when the run began"
  return f"the training data have {known:,} examples, but epochs are counted with {used:,}, as {source}."


def _with_origin(problem: Problem, loaded: LoadedExperiment) -> Problem:
  return dataclasses.replace(problem, origin=loaded.origin(problem.path))
