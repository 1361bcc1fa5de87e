"""The writers that a config asks for by name: `csv`, `wandb`, and users' own."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable

from official_trainer.config.named import Named
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import Problem
from official_trainer.writers.base import Writer
from official_trainer.writers.csv_table import CsvWriter
from official_trainer.writers.wandb_run import WandbWriter

_KEY = "trainer.writers"
_WANDB = "wandb"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterContext:
  """What a writer may need to know of its run.

  Attributes:
    model_dir: the run's folder.
    options: the trainer config.
  """

  model_dir: str
  options: TrainerConfig


WriterFactory = Callable[..., Writer]


def register_writer(name: str) -> Callable[[WriterFactory], WriterFactory]:
  """Registers `factory(context, **arguments) -> Writer` under a name, for `trainer.writers`.

      @register_writer("letters")
      def letters(context: WriterContext, *, to: str) -> Writer: ...

  It is called in the process that writes the run's folder, once for each start. `arguments` are
  `trainer.writer_arguments.<name>`.

  Raises:
    ConfigError: if another writer, such as a built-in one, has the name already.
  """

  return _NAMED.register(name)


def missing_writers(options: TrainerConfig) -> list[Problem]:
  """Returns why writers that are asked for cannot be made: unknown names, packages that are not installed.

  Call when the users' modules, which register writers, are imported.
  """
  problems = []
  for name in options.writers:
    if problem := _NAMED.problem(name):
      problems.append(Problem(_KEY, problem))
    elif name in _BUILT_IN and name in options.writer_arguments:
      problems.append(Problem(f"trainer.writer_arguments.{name}", "has no effect: the writer is a built-in one."))
  if _WANDB in options.writers:
    try:
      importlib.import_module(_WANDB)
    except ImportError as error:
      message = f"names 'wandb', whose package cannot be imported ({error}).\nInstall it: pip install wandb"
      problems.append(Problem(_KEY, message))
  return problems


def chosen_writers(options: TrainerConfig, model_dir: str) -> list[Writer]:
  """Makes the writers that a config asks for, in its order. Call where `missing_writers` finds nothing."""
  context = WriterContext(model_dir=model_dir, options=options)
  return [_NAMED.find(name, _KEY)(context, **options.writer_arguments.get(name, {})) for name in options.writers]


def _csv(context: WriterContext) -> Writer:
  return CsvWriter(os.path.join(context.model_dir, "csv"))


def _wandb(context: WriterContext) -> Writer:
  return WandbWriter(importlib.import_module(_WANDB), context.model_dir, context.options.wandb)


_BUILT_IN: dict[str, WriterFactory] = {"csv": _csv, _WANDB: _wandb}
_NAMED: Named[WriterFactory] = Named("writer", _BUILT_IN)
