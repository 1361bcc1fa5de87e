"""The classes that a config names, and what they must be."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer import registry
from official_trainer.errors import ConfigError
from official_trainer.task import Task
from official_trainer.trainer import Trainer


def resolve_task_class(name: str) -> type[Task]:
  """Imports the class of a task. Raises as `resolve_class`."""
  found: type[Task] = resolve_class(name, "task.task_class")
  return found


def resolve_class(name: str, key: str) -> Any:
  """Imports "module:Class".

  Args:
    name: what the config says.
    key: where it says so.

  Raises:
    ConfigError: if there is no such class.
  """
  module_name, _, class_name = name.partition(":")
  if not module_name or not class_name:
    raise ConfigError.of(key, f"must be 'module:Class', got {name!r}.")
  try:
    registry.import_modules([module_name])
    return getattr(sys.modules[module_name], class_name)
  except AttributeError as error:
    raise ConfigError.of(key, f"{name!r} cannot be imported: {error}") from error


def resolve_trainer_class(name: str) -> type[Trainer]:
  """Imports the class of a trainer. Raises as `resolve_class`, also if it is another kind of class."""
  found = resolve_class(name, "trainer.trainer_class")
  if not (isinstance(found, type) and issubclass(found, Trainer)):
    raise ConfigError.of("trainer.trainer_class", f"must be a subclass of official_trainer.Trainer, got {name!r}.")
  return found


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
