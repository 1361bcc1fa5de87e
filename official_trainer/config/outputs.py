"""What a run keeps: nothing without a folder, and what its two switches leave on."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import Origin, Problem

_TRAINING = ("train", "train_and_eval", "train_and_post_eval")
_NOT_THE_USERS = ("default", "experiment")

# What makes no sense without checkpoints: the key that asks for it, and the values at which it asks for nothing.
_NEEDS_CHECKPOINTS: dict[str, dict[str, Any]] = {
  "checkpoints_at": {"checkpoints_at": ()},
  "best_checkpoint_export_subdir": {"best_checkpoint_export_subdir": "", "best_checkpoint_eval_metric": ""},
  "best_checkpoints": {"best_checkpoints": ()},
  "recovery_max_trials": {"recovery_max_trials": 0},
}


# What has nowhere to go without a folder: the key that asks for it, and the trainer config that does not ask.
_NEEDS_FOLDER: dict[str, Callable[[TrainerConfig], TrainerConfig]] = {
  "dump_graphs": lambda trainer: dataclasses.replace(trainer, dump_graphs="none"),
  "profile.steps": lambda trainer: dataclasses.replace(
    trainer, profile=dataclasses.replace(trainer.profile, steps=None)
  ),
}


def folder_problems(config: ExperimentConfig, mode: str, *, has_checkpoint: bool) -> Iterator[Problem]:
  """Says what is wrong with a run without a folder.

  Args:
    config: the config.
    mode: how it is run.
    has_checkpoint: whether `--checkpoint` is given.
  """
  if mode in _TRAINING:
    if config.runtime.distribution_strategy == "parameter_server":
      yield Problem(
        "--model_dir", "must be given under parameter servers, whose processes find each other's notes there."
      )
  elif not (mode == "check_tpu" or (mode == "eval" and has_checkpoint)):
    yield Problem("--model_dir", "must be given: the folder of the run, e.g. --model_dir=runs/digits.")


def problems(
  config: ExperimentConfig, origin: Callable[[str], Origin], *, has_folder: bool = True
) -> Iterator[Problem]:
  """Refuses what the user has asked for, and what needs checkpoints, in a run that saves none.

  What the experiment asks for by itself is left out instead (`kept`): it was written for runs that keep something.

  Args:
    config: the config.
    origin: returns where the value of a dotted key was written.
    has_folder: whether the run has a model_dir.
  """
  why = _why_nothing_is_saved(config.trainer, has_folder)
  for name in _wanted(config.trainer) if why else ():
    path = f"trainer.{name}"
    if origin(path).layer not in _NOT_THE_USERS:
      yield Problem(path, f"needs checkpoints, but {why}. Leave this out, or let them be saved.", origin(path))
  for name in [] if has_folder else _without_place(config.trainer):
    path = f"trainer.{name}"
    if origin(path).layer not in _NOT_THE_USERS:
      yield Problem(path, f"needs a folder, but {why}. Leave this out, or give one.", origin(path))


def kept(config: ExperimentConfig, mode: str, *, has_folder: bool) -> tuple[ExperimentConfig, list[str]]:
  """Returns the config of what is kept, and lines for people on what is not.

  Args:
    config: the config.
    mode: how it is run.
    has_folder: whether the run has a model_dir.
  """
  trainer = config.trainer
  why = _why_nothing_is_saved(trainer, has_folder)
  if mode not in _TRAINING:
    return _with(config, write_summaries=trainer.write_summaries and has_folder), []
  lines = []
  if why:
    wanted = _wanted(trainer)
    placeless = [] if has_folder else _without_place(trainer)
    left_out = ", ".join(f"trainer.{name}" for name in (*wanted, *placeless))
    off = f" (left out: {left_out})" if left_out else ""
    what = "nothing of this run is kept" if not has_folder else "no checkpoint is saved, and a restart begins anew"
    lines.append(f"{why}: {what}{off}")
    idle = {key: value for name in wanted for key, value in _NEEDS_CHECKPOINTS[name].items()}
    config = _with(config, save_checkpoints=False, **idle)
    for name in placeless:
      config = dataclasses.replace(config, trainer=_NEEDS_FOLDER[name](config.trainer))
  if has_folder and not trainer.write_summaries:
    lines.append("trainer.write_summaries is false: no curves are written")
  return _with(config, write_summaries=trainer.write_summaries and has_folder), lines


def _why_nothing_is_saved(trainer: TrainerConfig, has_folder: bool) -> str:
  if not has_folder:
    return "there is no --model_dir"
  return "" if trainer.save_checkpoints else "trainer.save_checkpoints is false"


def _wanted(trainer: TrainerConfig) -> list[str]:
  """Lists the settings that ask for something that needs checkpoints."""

  def asks(name: str) -> bool:
    value = getattr(trainer, name)
    return value > 0 if isinstance(value, int) else bool(value)

  return [name for name in _NEEDS_CHECKPOINTS if asks(name)]


def _without_place(trainer: TrainerConfig) -> list[str]:
  """Lists the settings that ask for something that needs a folder."""
  return [name for name, without in _NEEDS_FOLDER.items() if without(trainer) != trainer]


def _with(config: ExperimentConfig, **trainer: Any) -> ExperimentConfig:
  return dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, **trainer))
