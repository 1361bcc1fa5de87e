"""The smallest real run: 20 examples, one dense layer of two units, steps that take microseconds.

`build` puts a session together as the runner does, in the test's process, and `interrupted_by` stops
it as a crash would. The same classes are registered as the experiment "tiny", for what starts from a
config.
"""

import dataclasses
import io
import json
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best_rules import build_best_checkpoints
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.optim.config import (
  ConstantLrConfig,
  EmaConfig,
  LrConfig,
  OptimizationConfig,
  OptimizerConfig,
)
from official_trainer.random_state import seed_everything
from official_trainer.registry import register_experiment
from official_trainer.run.session import EVALUATING_MODES, TRAINING_MODES, Session
from official_trainer.stop import StopRequest
from official_trainer.task import Task
from official_trainer.timing.data_wait import DataWait
from official_trainer.trainer import Trainer
from official_trainer.writers.base import WriterGroup
from official_trainer.writers.console import Console
from official_trainer.writers.jsonl import HistoryWriter

NUM_EXAMPLES = 20
BATCH_SIZE = 4
SEED = 7


BEST = {"best_checkpoint_export_subdir": "best_ckpt", "best_checkpoint_eval_metric": "accuracy"}
"""Settings that export the most accurate weights."""

EVERYTHING = {
  **BEST,
  "train_steps": 13,
  "steps_per_loop": 4,
  "checkpoint_interval": 3,
  "validation_interval": 6,
  "ema": EmaConfig(average_decay=0.9),
  "task": {"hidden": (4,), "dropout": 0.5, "batchnorm": True},
}
"""Averages, statistics, random masks, and a checkpoint interval that falls inside reports."""


class Interrupted(Exception):
  """Stands for a crash."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyConfig(TaskConfig):
  task_class: str = "tests.tiny:TinyTask"
  hidden: tuple[int, ...] = ()
  dropout: float = 0.0
  batchnorm: bool = False


class TinyTask(Task):
  """Tells whether the first of three numbers is positive."""

  def build_model(self) -> tf_keras.Model:
    config, layers = self.task_config, tf_keras.layers
    model = tf_keras.Sequential([layers.Input((3,))])
    for units in config.hidden:
      model.add(layers.Dense(units))
    if config.batchnorm:
      model.add(layers.BatchNormalization(momentum=0.5))
    if config.dropout:
      model.add(layers.Dropout(config.dropout))
    model.add(layers.Dense(2))
    return model

  def build_source(self, params) -> ArraySource:
    del params
    return ArraySource(examples())

  def build_losses(self, labels, model_outputs, aux_losses=None):
    del aux_losses
    return tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

  def build_metrics(self, training=True):
    del training
    return [tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


class LongTask(TinyTask):
  """As many training examples as a test needs for one epoch; the features of `poisoned` ones are `poison`."""

  num_examples = 100
  poisoned: tuple[int, ...] = ()
  poison = np.nan

  def build_source(self, params):
    if not params.is_training:
      return super().build_source(params)
    features, labels = examples(self.num_examples)
    features[list(self.poisoned)] = self.poison
    return ArraySource((features, labels))


class FiniteTask(TinyTask):
  """A plain pipeline that ends after five full batches."""

  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    return tf.data.Dataset.from_tensor_slices(examples()).batch(params.global_batch_size)


def examples(num_examples: int = NUM_EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
  features = np.random.default_rng(1).normal(size=(num_examples, 3)).astype(np.float32)
  return features, (features[:, 0] > 0).astype(np.int32)


_OF_OPTIMIZATION = ("ema", "param_groups", "gradient_transforms")


def trainer_config(**changes: Any) -> TrainerConfig:
  """Returns six steps with everything due at every second one."""
  values = {
    "train_steps": 6,
    "steps_per_loop": 2,
    "checkpoint_interval": 2,
    "validation_interval": 2,
    "optimizer_config": OptimizationConfig(
      optimizer=OptimizerConfig(type="adam"),
      learning_rate=LrConfig(type="constant", constant=ConstantLrConfig(learning_rate=0.1)),
      **{name: changes.pop(name) for name in _OF_OPTIMIZATION if name in changes},
    ),
  }
  return TrainerConfig(**(values | changes))


def experiment_config(
  *,
  seed: int | None = SEED,
  task: dict | None = None,
  train_data: dict | None = None,
  validation_data: dict | None = None,
  **trainer: Any,
):
  return ExperimentConfig(
    task=TinyConfig(
      train_data=DataConfig(**{"global_batch_size": BATCH_SIZE, "is_training": True, **(train_data or {})}),
      validation_data=DataConfig(
        **{"global_batch_size": 6, "is_training": False, "drop_remainder": False, **(validation_data or {})}
      ),
      **(task or {}),
    ),
    trainer=trainer_config(**trainer),
    runtime=RuntimeConfig(seed=seed, distribution_strategy="one_device"),
  )


@register_experiment("tiny")
def tiny() -> ExperimentConfig:
  """For tests of what starts from a config."""
  return experiment_config(seed=None)


@dataclasses.dataclass(frozen=True)
class Built:
  """A session before it runs, with its parts."""

  session: Session
  trainer: Trainer
  stream: io.StringIO

  @property
  def state(self):
    return self.trainer.state

  @property
  def said(self) -> str:
    """What the console showed."""
    return self.stream.getvalue()

  def run(self):
    return self.session.run()


def build(
  folder: Any,
  *,
  mode: str = "train_and_eval",
  task_class: type[Task] = TinyTask,
  task: dict | None = None,
  train_data: dict | None = None,
  validation_data: dict | None = None,
  seed: int = SEED,
  session: dict | None = None,
  stop: StopRequest | None = None,
  strategy: tf.distribute.Strategy | None = None,
  **trainer: Any,
) -> Built:
  """Builds a session in `folder` as the runner does.

  Args:
    folder: the model_dir.
    mode: of the session.
    task_class: the task.
    task: fields of TinyConfig.
    train_data: fields of its DataConfig.
    validation_data: likewise.
    seed: the run's seed.
    session: further arguments of Session.
    stop: watched by the trainer and the loop.
    strategy: None for one device.
    **trainer: fields of TrainerConfig; `ema`, `param_groups` and `gradient_transforms` those of its optimizer_config.
  """
  folder = str(folder)
  config = experiment_config(seed=seed, task=task, train_data=train_data, validation_data=validation_data, **trainer)
  seed_everything(seed)
  trains = mode in TRAINING_MODES
  data_wait, best = DataWait(), None
  with (strategy or tf.distribute.OneDeviceStrategy("CPU:0")).scope():
    tiny_task = task_class(config.task)
    built = Trainer(
      config,
      tiny_task,
      tiny_task.build_model(),
      tiny_task.create_optimizer(config.trainer.optimizer_config) if trains else None,
      train=trains,
      evaluate=mode in EVALUATING_MODES,
      stop=stop,
      data_wait=data_wait,
    )
    if mode != "eval":
      records = built.state.host.best if trains else None
      best = build_best_checkpoints(config.trainer, folder, records)
      built.checkpoint_exporter = best
  stream = io.StringIO()
  console = Console(stream, terminal=False)
  files = [HistoryWriter(f"{folder}/history.jsonl")] if trains else []
  made = Session(
    trainer=built,
    options=config.trainer,
    mode=mode,
    model_dir=folder,
    writer=WriterGroup([console, *files]),
    console=console,
    stop=stop,
    **{"at_end": [best.finish] if best else [], **(session or {})},
  )
  return Built(made, built, stream)


def interrupted_by(step: int, mode: str = "train") -> dict:
  """Returns arguments of Session that make it crash after everything else was done at `step`."""

  def crash(event):
    if event.step == step:
      raise Interrupted(f"at step {step}")

  return {"train_actions": [crash]} if mode == "train" else {"eval_actions": [crash]}


def contents(prefix: str) -> dict[str, np.ndarray]:
  """Returns every value of a checkpoint, the host state's text included."""
  reader = tf.train.load_checkpoint(str(prefix))
  names = sorted(reader.get_variable_to_shape_map())
  return {name: reader.get_tensor(name) for name in names if "OBJECT_GRAPH" not in name}


def assert_same_contents(prefix: str, other: str) -> None:
  """Compares two checkpoints bit for bit."""
  one, two = contents(prefix), contents(other)
  assert one.keys() == two.keys()
  for name, value in one.items():
    assert np.asarray(value).tobytes() == np.asarray(two[name]).tobytes() or (
      np.array_equal(value, two[name]) and np.asarray(value).dtype == object
    ), name


def committed(folder: Any) -> list[int]:
  return manifest.committed_steps(str(folder))


def files_of(folder: Any, step: int) -> list[str]:
  """Lists the names of a checkpoint's files, the manifest included."""
  return sorted(name for name in os.listdir(folder) if name.rstrip("/").startswith(f"ckpt-{step}."))


def rows(folder: Any) -> list[tuple[int, str]]:
  """Returns (step, mode) of each line of history.jsonl."""
  lines = (pathlib.Path(folder) / "history.jsonl").read_text("utf-8").splitlines()
  return [(row["step"], row["mode"]) for row in map(json.loads, lines)]


def steps_of(folder: Any, mode: str) -> list[int]:
  """Returns the steps that history.jsonl has in one mode."""
  return [step for step, row_mode in rows(folder) if row_mode == mode]
