"""A task of a few parameters, and trainers of it, for tests that compare numbers bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.strategy import build_strategy
from official_trainer.optim.config import EmaConfig, OptimizationConfig
from official_trainer.random_state import seed_everything
from official_trainer.run.session import Session
from official_trainer.task import Task
from official_trainer.trainer import Trainer
from official_trainer.writers.base import WriterGroup
from official_trainer.writers.console import Console

FEATURES = 3

Layers = Callable[[], Sequence[tf_keras.layers.Layer]]


def rows(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Returns features, float32 [size, 3], and targets, float32 [size, 1]."""
  generator = np.random.default_rng(seed)
  features = generator.normal(size=(size, FEATURES)).astype(np.float32)
  return features, (features @ [[1.0], [-2.0], [0.5]] + 0.3).astype(np.float32)


def linear() -> list[tf_keras.layers.Layer]:
  return [tf_keras.layers.Dense(1)]


def deep() -> list[tf_keras.layers.Layer]:
  """Without dropout and without batch normalisation."""
  return [tf_keras.layers.Dense(8, "tanh"), tf_keras.layers.Dense(1)]


def normalised(synchronized: bool) -> list[tf_keras.layers.Layer]:
  # Without a bias, whose gradient would be rounding noise that Adam blows up.
  return [
    tf_keras.layers.Dense(8, use_bias=False),
    tf_keras.layers.BatchNormalization(momentum=0.9, synchronized=synchronized),
    tf_keras.layers.ReLU(),
    tf_keras.layers.Dense(1),
  ]


def everything() -> list[tf_keras.layers.Layer]:
  """Plain batch normalisation and dropout: what depends on replicas."""
  return [
    tf_keras.layers.Dense(8),
    tf_keras.layers.BatchNormalization(momentum=0.9),
    tf_keras.layers.ReLU(),
    tf_keras.layers.Dropout(0.3),
    tf_keras.layers.Dense(1),
  ]


class Regression(Task):
  """Squared error on rows that are held in memory, read by index."""

  def __init__(self, params: Any, *, train: Any = None, validation: Any = None, layers: Layers = linear):
    super().__init__(params)
    self.train = rows(24) if train is None else train
    self.validation = rows(10, seed=1) if validation is None else validation
    self.layers = layers
    self.traces = {"train": 0, "validation": 0}

  def build_model(self) -> tf_keras.Model:
    inputs = tf_keras.layers.Input((FEATURES,))
    outputs = inputs
    for layer in self.layers():
      outputs = layer(outputs)
    return tf_keras.Model(inputs, outputs)

  def build_source(self, params):
    return ArraySource(self.train if params.is_training else self.validation)

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.square(tf.cast(model_outputs, tf.float32) - labels)[:, 0]

  def build_metrics(self, training=True):
    return [tf_keras.metrics.MeanAbsoluteError(name="mae")]

  def train_step(self, *args, **kwargs):
    self.traces["train"] += 1
    return super().train_step(*args, **kwargs)

  def validation_step(self, *args, **kwargs):
    self.traces["validation"] += 1
    return super().validation_step(*args, **kwargs)


class PipelineRegression(Regression):
  """The same through a plain tf.data pipeline; the last batch of an epoch is a partial one."""

  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices(self.train if params.is_training else self.validation)
    batch_size = params.global_batch_size
    if input_context is not None:
      batch_size = input_context.get_per_replica_batch_size(batch_size)
    dataset = dataset.batch(batch_size)
    return dataset.repeat() if params.is_training else dataset


def optimization(
  kind: str = "sgd",
  rate: float = 0.05,
  *,
  legacy: bool = False,
  ema: EmaConfig | None = None,
  **settings: Any,
) -> OptimizationConfig:
  config = OptimizationConfig(legacy=legacy, ema=ema)
  chosen = dataclasses.replace(getattr(config.optimizer, kind), **settings)
  constant = dataclasses.replace(config.learning_rate.constant, learning_rate=rate)
  return dataclasses.replace(
    config,
    optimizer=dataclasses.replace(config.optimizer, type=kind, **{kind: chosen}),
    learning_rate=dataclasses.replace(config.learning_rate, type="constant", constant=constant),
  )


def experiment(
  *,
  batch_size: int = 4,
  eval_batch_size: int = 4,
  optimizer_config: OptimizationConfig | None = None,
  runtime: RuntimeConfig | None = None,
  train_data: dict[str, Any] | None = None,
  **trainer: Any,
) -> ExperimentConfig:
  settings = {
    "train_steps": 8,
    "steps_per_loop": 2,
    "checkpoint_interval": 4,
    "validation_interval": 4,
    **trainer,
  }
  return ExperimentConfig(
    task=TaskConfig(
      train_data=DataConfig(global_batch_size=batch_size, is_training=True, **(train_data or {})),
      validation_data=DataConfig(global_batch_size=eval_batch_size, is_training=False),
    ),
    trainer=TrainerConfig(optimizer_config=optimizer_config or optimization(), **settings),
    runtime=runtime or RuntimeConfig(seed=3),
  )


def strategy_of(num_replicas: int) -> tf.distribute.Strategy:
  """Returns no strategy for one replica, else a mirrored one over logical CPUs."""
  kind = "off" if num_replicas == 1 else "mirrored"
  return build_strategy(RuntimeConfig(distribution_strategy=kind, num_virtual_devices=num_replicas))


def build_trainer(
  config: ExperimentConfig | None = None,
  *,
  task: Callable[[Any], Task] = Regression,
  num_replicas: int = 1,
  trainer_class: type[Trainer] = Trainer,
  optimizer: Any = None,
  **kwargs: Any,
) -> Trainer:
  """Builds task, model, optimizer and trainer as a fresh process would, from the config's seed."""
  config = config or experiment()
  seed_everything(config.runtime.seed)
  with strategy_of(num_replicas).scope():
    built_task = task(config.task)
    model = built_task.build_model()
    if optimizer is None:
      optimizer = built_task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    return trainer_class(config, built_task, model, optimizer, **kwargs)


def train(trainer: Trainer, num_steps: int) -> dict[str, float]:
  """Does `num_steps` updates and returns the scalars of the report."""
  with trainer.strategy.scope():
    logs = trainer.train(tf.constant(num_steps))
  return {key: float(value) for key, value in logs.items()}


def evaluate(trainer: Trainer, num_steps: int = -1) -> dict[str, float]:
  with trainer.strategy.scope():
    logs = trainer.evaluate(tf.constant(num_steps))
  return {key: float(value) for key, value in logs.items()}


def session(trainer: Trainer, model_dir: Any, mode: str = "train_and_eval", **kwargs: Any) -> Session:
  return Session(
    trainer=trainer,
    options=trainer.config.trainer,
    mode=mode,
    model_dir=str(model_dir),
    writer=WriterGroup([]),
    console=Console(quiet=True),
    **kwargs,
  )


def bits(trainer: Trainer) -> dict[str, list[bytes]]:
  """Returns every value of a trainer's state, of every replica: equal means equal to the bit."""
  state = trainer.state
  optimizer = state.optimizer
  slots = [] if optimizer is None else optimizer.variables
  groups = {
    "step": [state.global_step],
    "model": state.model.variables,
    "slots": slots() if callable(slots) else slots,
    "averages": state.ema.averages,
  }
  return {name: [value for v in group for value in _replica_bits(trainer, v)] for name, group in groups.items()}


def _replica_bits(trainer: Trainer, variable: tf.Variable) -> list[bytes]:
  return [local.numpy().tobytes() for local in trainer.strategy.experimental_local_results(variable)]
