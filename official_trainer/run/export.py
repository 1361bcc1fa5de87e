"""Exports of a run: of a checkpoint, asked for by hand, and of the best weights while it trains."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from official_trainer.actions.export_best import ExportBest
from official_trainer.checkpoint.best_folder import STEP_KEY, best_checkpoint_in
from official_trainer.checkpoint.finite import FiniteCheck
from official_trainer.checkpoint.locate import find_checkpoint, is_model_only
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.config.checks_export import BEST_EXPORT
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import ConfigError, first_of
from official_trainer.export import manifest
from official_trainer.export.examples import Examples
from official_trainer.export.exporter import Exported, Exporter
from official_trainer.export.reloading import reload_in_fresh_process
from official_trainer.run.start import Start
from official_trainer.timing.phases import Enter
from official_trainer.trainer import Trainer
from official_trainer.writers.console import Console


@contextlib.contextmanager
def _as_served(trainer: Trainer) -> Iterator[None]:
  """Gives the model what it has outside a run: numbers in the place of scheduled variables. Pruned weights stay."""
  state = trainer.state
  trainer.schedules.set_for_evaluation(state.host.history.as_of_evaluation, state.step)
  with trainer.pruning.held(), trainer.schedules.as_numbers():
    yield


def export_checkpoint(
  trainer: Trainer,
  options: TrainerConfig,
  model_dir: str,
  *,
  checkpoint: str | None,
  batches: Callable[[], Any],
  console: Console,
  experiment: str | None,
  facts: Mapping[str, Any],
  may_differ: Collection[str] = (),
) -> Exported:
  """Exports a checkpoint of a run into a folder named by its step. Call under the strategy's scope.

  Args:
    trainer: built without training and evaluation; its state is filled.
    options: the trainer config.
    model_dir: the run's folder.
    checkpoint: what to export, a prefix or a folder; None for what `trainer.export.source` says.
    batches: returns a dataset of the validation data.
    console: for status lines and warnings.
    experiment: its name.
    facts: recorded in the export's manifest.
    may_differ: variables that may differ between the model and the checkpoint.

  Raises:
    ConfigError: if there is no such checkpoint, it has not the weights that are wanted, or they are not finite.
    ExportRefused: see `Exporter.export`.
  """
  path = checkpoint or _source(options, model_dir)
  state = trainer.state
  prefix = find_checkpoint(path)
  if prefix is not None and options.export.weights == "raw" and state.ema.averages and is_model_only(prefix):
    message = f"is 'raw', but {prefix} holds only the weights that were evaluated, which are averages."
    raise ConfigError.of("trainer.export.weights", f"{message}\nExport a whole checkpoint, such as the newest one.")
  non_finite_names = FiniteCheck(state.finite_variables()).non_finite_names
  store = CheckpointStore(model_dir, state.checkpoint)
  start = Start(
    trainer, store, non_finite_names, checkpoint=path, may_differ=may_differ, note=console.note, warn=console.warn
  )
  console.status("restoring")
  start.load_for_evaluation()
  if names := non_finite_names():
    raise ConfigError.of("--checkpoint", f"{prefix} has variables that are not finite: {first_of(names)}.")
  exporter = Exporter(
    trainer.task,
    state,
    options.export,
    examples=Examples(batches, console.warn),
    experiment=experiment,
    facts={**facts, "checkpoint": prefix},
    held=functools.partial(_as_served, trainer),
    reload=reload_in_fresh_process,
  )
  console.status("exporting")
  folder = options.export.folder or os.path.join(model_dir, "export")
  return exporter.export(os.path.join(folder, str(state.step)))


def build_export_best(
  trainer: Trainer,
  options: TrainerConfig,
  model_dir: str,
  *,
  console: Console,
  experiment: str | None,
  facts: Mapping[str, Any],
  phases: Enter,
) -> tuple[Exporter, ExportBest] | None:
  """Returns what exports the best weights of a run that evaluates, and its action; None if it is not asked for."""
  rules = trainer.checkpoint_exporter
  if not options.export.on_best or rules is None:
    return None
  subdir = options.best_checkpoint_export_subdir
  [rule] = [rule for rule in rules if rule.export_dir == os.path.join(model_dir, subdir)]
  exporter = Exporter(
    trainer.task,
    trainer.state,
    options.export,
    examples=Examples(trainer.validation_batches, console.warn),
    experiment=experiment,
    facts=facts,
    held=functools.partial(_as_served, trainer),
    reload=reload_in_fresh_process,
  )

  def best_step() -> int | None:
    record = rule.best_ckpt_logs
    return None if record is None else int(record[STEP_KEY])

  folder = os.path.join(model_dir, BEST_EXPORT)
  action = ExportBest(
    lambda folder: exporter.export(folder).weights,
    folder,
    best_step,
    lambda: manifest.step_of(folder),
    note=console.note,
    warn=console.warn,
    phases=phases,
  )
  return exporter, action


def _source(options: TrainerConfig, model_dir: str) -> str:
  if options.export.source == "newest":
    return model_dir
  folder = os.path.join(model_dir, options.best_checkpoint_export_subdir)
  if best_checkpoint_in(folder) is None:
    raise ConfigError.of("trainer.export.source", f"is 'best', but {folder} holds no weights.")
  return folder
