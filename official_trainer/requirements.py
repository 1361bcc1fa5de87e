"""What a trainer needs of the config and the strategy it is given, checked before anything is built."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official_trainer.config.trainer import TrainerConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError, Problem
from official_trainer.optim.config import ParamGroupConfig


def require_asynchronous(strategy: tf.distribute.Strategy, trainer: TrainerConfig, runtime: RuntimeConfig) -> None:
  """Checks that nothing is asked for which workers that train for themselves cannot do.

  Raises:
    ConfigError: everything that is.
  """
  asked = {
    "trainer.exact_resume": trainer.exact_resume and not trainer.serial_closures,
    "trainer.skip_nonfinite_updates": trainer.skip_nonfinite_updates,
    "trainer.train_tf_function": not trainer.train_tf_function,
    "trainer.train_tf_while_loop": not trainer.train_tf_while_loop,
    "trainer.gradient_accumulation_steps": trainer.gradient_accumulation_steps > 1,
    "trainer.log_norms": trainer.log_norms != "none",
    "trainer.schedules": bool(trainer.schedules),
    "trainer.optimizer_config.param_groups": any(map(_needs_order, trainer.optimizer_config.param_groups)),
    "runtime.run_eagerly": runtime.run_eagerly,
    "runtime.enable_xla": runtime.enable_xla,
    "trainer.recreate_iterator_for_each_eval": not trainer.recreate_iterator_for_each_eval,
  }
  problems = [Problem(key, _WHY_NOT[key]) for key, is_asked in asked.items() if is_asked]
  if strategy.num_replicas_in_sync > 1:
    problems.append(
      Problem(
        "runtime.num_gpus",
        f"each worker is one replica under parameter servers, but there are {strategy.num_replicas_in_sync} GPUs on"
        " each: start one worker for each GPU, with CUDA_VISIBLE_DEVICES.",
      )
    )
  if problems:
    raise ConfigError(problems)


def _needs_order(rule: ParamGroupConfig) -> bool:
  """Whether a group needs that nobody else writes during its update, or that each update is counted once."""
  return rule.lr_multiplier != 1 or rule.layer_decay is not None or rule.optimizer is not None


_WHY_NOT = {
  "trainer.exact_resume": "is refused under parameter servers, whose updates come in another order in every run. Set"
  " trainer.serial_closures=true (for debugging), or use another strategy.",
  "trainer.skip_nonfinite_updates": "is refused under parameter servers: a worker writes its update while others read."
  " Use trainer.recovery_max_trials.",
  "trainer.train_tf_function": "must be true under parameter servers: workers run compiled functions only.",
  "trainer.train_tf_while_loop": "must be true under parameter servers: workers run compiled loops only.",
  "trainer.gradient_accumulation_steps": "must be 1 under parameter servers: each worker updates by itself. Use a"
  " smaller batch.",
  "trainer.schedules": "must be empty under parameter servers: workers are at several steps at the same time, and the"
  " numbers are shared. Schedules of the learning rate are those of trainer.optimizer_config.learning_rate.",
  "trainer.log_norms": "must be 'none' under parameter servers: others write while a worker measures its update.",
  "trainer.optimizer_config.param_groups": "must have no lr_multiplier, no layer_decay and no optimizer under parameter"
  " servers: what others wrote in between would be lost, and calls that are run again would be counted twice. Frozen"
  " variables and another weight_decay work.",
  "runtime.run_eagerly": "must be false under parameter servers: workers run compiled functions only. Debug with"
  " distribution_strategy=one_device.",
  "trainer.recreate_iterator_for_each_eval": "must be true under parameter servers: workers read an evaluation by the"
  " numbers of its batches.",
  "runtime.enable_xla": "must be false under parameter servers: XLA cannot read variables of another process.",
}


def require_parts(config: Any, train_data: bool, validation_data: bool) -> None:
  """Checks the shape of a config that may be foreign.

  Args:
    config: an ExperimentConfig, or any object with the same attributes.
    train_data: whether `task.train_data` is needed.
    validation_data: whether `task.validation_data` is needed.

  Raises:
    AttributeError: if a part is missing, as Model Garden's trainer does.
  """
  for name in ("trainer", "task"):
    if not hasattr(config, name):
      raise AttributeError(f"the trainer's config must have the attribute `{name}`; got a {type(config).__name__}.")
  for name, needed in (("train_data", train_data), ("validation_data", validation_data)):
    if needed and not hasattr(config.task, name):
      raise AttributeError(
        f"the trainer's config must have the attribute `task.{name}`, or a dataset must be given in its place."
      )


def require_enough(num_batches: int | None, validation_steps: int, path: str = "task.validation_data") -> None:
  """Checks that an evaluation has as many batches as it is asked for, where their number is known.

  Args:
    num_batches: of the evaluation's input, None where it is not known.
    validation_steps: `trainer.validation_steps`; -1 for all there are.
    path: the key of the data's settings.

  Raises:
    ConfigError: if there are fewer.
  """
  if num_batches is not None and validation_steps > num_batches:
    raise ConfigError.of(
      "trainer.validation_steps",
      f"asks for {validation_steps} batches, but {path} has {num_batches}. Use -1 for every example once.",
    )


def require_whole(num_evaluated: int, dataset: Any, path: str = "task.validation_data") -> None:
  """Checks that an evaluation is one.

  Orbit takes every OutOfRangeError in an evaluation for the end of the data, also one of a file that grew too large.

  Args:
    num_evaluated: batches that were evaluated.
    dataset: what was to be evaluated as a whole; None where it was not.
    path: the key of the data's settings.

  Raises:
    ValueError: if there was none at all.
    RuntimeError: if it ended before the data did.
  """
  if num_evaluated == 0:
    raise ValueError(
      f"the evaluation set is empty: not one example was evaluated. Check {path}"
      " (split, files, drop_remainder with a batch larger than the set)."
    )
  num_batches = int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else -1
  if num_evaluated < num_batches:  # Negative where it is not known.
    raise RuntimeError(
      f"the evaluation ended after {num_evaluated} of {num_batches} batches: something else than the data ran out in a"
      " step, such as the room for a file that it writes."
    )
