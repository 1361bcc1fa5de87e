"""Trainers with parameter groups on a small network whose layers have names."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.optim.variable_paths import variable_paths
from official_trainer.trainer import Trainer
from tests import small_tasks


def layers() -> list[tf_keras.layers.Layer]:
  return [
    tf_keras.layers.Dense(4, name="stem"),
    tf_keras.layers.BatchNormalization(momentum=0.5, name="norm"),
    tf_keras.layers.Dense(4, "tanh", name="block"),
    tf_keras.layers.Dense(1, name="head"),
  ]


def plain() -> list[tf_keras.layers.Layer]:
  """Without statistics, which belong to replicas."""
  return [layer for layer in layers() if layer.name != "norm"]


def build(
  kind: str = "adam",
  *,
  rate: float = 0.01,
  num_replicas: int = 1,
  runtime: RuntimeConfig | None = None,
  layers: small_tasks.Layers = layers,
  **settings: Any,
) -> Trainer:
  """Builds a trainer; `settings` are fields of TrainerConfig, or those of OptimizationConfig."""
  optimization = small_tasks.optimization(kind, rate)
  names = {field.name for field in dataclasses.fields(optimization)}
  own = {name: settings.pop(name) for name in list(settings) if name in names}
  config = small_tasks.experiment(
    optimizer_config=dataclasses.replace(optimization, **own), runtime=runtime or RuntimeConfig(seed=3), **settings
  )
  task = functools.partial(small_tasks.Regression, layers=layers)
  return small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)


def weights(trainer: Trainer) -> dict[str, Any]:
  """Returns path -> value, float32 arrays."""
  return {path: variable.numpy() for path, variable in variable_paths(trainer.model)}


def slot_shapes(trainer: Trainer) -> list[list[int]]:
  variables = trainer.optimizer.variables
  return [v.shape.as_list() for v in (variables() if callable(variables) else variables)]


def needed_op_types(trainer: Trainer) -> list[str]:
  """Returns the types of the operations of a training step that are left once those nobody needs are pruned."""
  iterator = iter(trainer.train_input.dataset(0))

  @tf.function
  def step() -> None:
    trainer.train_step(iterator)

  graph = step.get_concrete_function().graph
  ops = {op.name: op for op in graph.get_operations()}
  needed, queue = set(), [op for op in ops.values() if op.op_def.is_stateful]
  while queue:
    op = queue.pop()
    if op.name not in needed:
      needed.add(op.name)
      queue += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
  return [ops[name].type for name in needed]
