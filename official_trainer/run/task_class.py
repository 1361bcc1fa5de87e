"""The task that a config names, and the model that it must build."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer import registry
from official_trainer.errors import ConfigError
from official_trainer.task import Task


def resolve_task_class(name: str) -> type[Task]:
  """Imports "module:Class".

  Raises:
    ConfigError: if there is no such class.
  """
  module_name, _, class_name = name.partition(":")
  if not module_name or not class_name:
    raise ConfigError.of("task.task_class", f"must be 'module:Class', got {name!r}.")
  try:
    registry.import_modules([module_name])
    return getattr(sys.modules[module_name], class_name)
  except AttributeError as error:
    raise ConfigError.of("task.task_class", f"{name!r} cannot be imported: {error}") from error


def require_keras_model(model: Any, task: Task) -> tf_keras.Model:
  """Returns the model, if it is one that this stack can train.

  Raises:
    ConfigError: if it is a Keras 3 model, or no model at all.
  """
  if isinstance(model, tf.Module):
    return model
  kind = f"{type(model).__module__}.{type(model).__qualname__}"
  hint = " That is Keras 3; build it with `import tf_keras`." if kind.startswith("keras.") else ""
  raise ConfigError.of(
    "task.task_class", f"{type(task).__name__}.build_model() must return a tf_keras.Model, got {kind}.{hint}"
  )
