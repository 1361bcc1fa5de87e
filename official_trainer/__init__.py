"""A trainer for TensorFlow 2 and tf-keras whose runs are a function of their config.

The names below are loaded when first used: importing the package imports no TensorFlow.
"""

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from official_trainer.config import checkout

if TYPE_CHECKING:
  from official_trainer.compat.model_garden import run_experiment
  from official_trainer.config.experiment import ExperimentConfig, TaskConfig
  from official_trainer.config.trainer import TrainerConfig
  from official_trainer.data.arrays import ArraySource
  from official_trainer.data.config import DataConfig
  from official_trainer.data.source import RandomAccessSource
  from official_trainer.distribute.config import RuntimeConfig
  from official_trainer.optim.config import OptimizationConfig
  from official_trainer.registry import register_experiment
  from official_trainer.runner import Runner
  from official_trainer.task import Task
  from official_trainer.trainer import Trainer

checkout.map_experiments(pathlib.Path(__file__).resolve().parent)

_HOMES = {
  "ArraySource": "official_trainer.data.arrays",
  "DataConfig": "official_trainer.data.config",
  "ExperimentConfig": "official_trainer.config.experiment",
  "OptimizationConfig": "official_trainer.optim.config",
  "RandomAccessSource": "official_trainer.data.source",
  "Runner": "official_trainer.runner",
  "RuntimeConfig": "official_trainer.distribute.config",
  "Task": "official_trainer.task",
  "TaskConfig": "official_trainer.config.experiment",
  "Trainer": "official_trainer.trainer",
  "TrainerConfig": "official_trainer.config.trainer",
  "register_experiment": "official_trainer.registry",
  "run_experiment": "official_trainer.compat.model_garden",
}

__all__ = [
  "ArraySource",
  "DataConfig",
  "ExperimentConfig",
  "OptimizationConfig",
  "RandomAccessSource",
  "Runner",
  "RuntimeConfig",
  "Task",
  "TaskConfig",
  "Trainer",
  "TrainerConfig",
  "register_experiment",
  "run_experiment",
]


def __getattr__(name: str) -> Any:
  """Imports the home of a public name when it is first asked for."""
  if name not in _HOMES:
    raise AttributeError(f"module 'official_trainer' has no attribute '{name}'")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted(__all__)
