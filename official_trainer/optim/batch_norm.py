"""Freezes layers of batch normalisation: their statistics, their affine parameters, or both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.config.nearest import nearest
from official_trainer.errors import ConfigError, Problem
from official_trainer.optim.config import BatchNormConfig
from official_trainer.optim.variable_paths import variable_paths

_KEY = "trainer.batch_norm"


def freeze_batch_norm(model: tf_keras.Model, config: BatchNormConfig) -> list[tf.Variable]:
  """Freezes statistics in the model, and returns the affine parameters that must not be trained.

  A layer with frozen statistics normalises with them in training as in evaluation (Ioffe and Szegedy, 2015, section
  3.1, as at inference), and its gamma and beta are still trained unless they are frozen as well.

  Args:
    model: a built model.
    config: which layers.

  Returns:
    Variables of `model.trainable_variables`.

  Raises:
    ConfigError: naming every pattern that matches no layer.
  """
  if not (config.freeze_statistics or config.freeze_affine):
    return []
  layers = dict(_layers_of(model))
  problems: list[Problem] = []
  for layer in _matching(layers, config.freeze_statistics, f"{_KEY}.freeze_statistics", problems):
    # Keras asks this method whether to use and move the statistics of the batch.
    object.__setattr__(layer, "_get_training_value", _never)
  frozen = _matching(layers, config.freeze_affine, f"{_KEY}.freeze_affine", problems)
  if problems:
    raise ConfigError(problems)
  return [variable for layer in frozen for variable in layer.trainable_variables]


def _layers_of(model: tf_keras.Model) -> Iterator[tuple[str, Any]]:
  """Yields (path, layer) of every layer with moving statistics."""
  paths = {id(variable): path for path, variable in variable_paths(model)}
  for layer in model._flatten_layers():  # noqa: SLF001  # What tf-keras collects weights by.
    path = paths.get(id(getattr(layer, "moving_mean", None)))
    if path is not None and hasattr(layer, "_get_training_value"):
      yield path.rpartition("/")[0], layer


def _matching(layers: dict[str, Any], patterns: Sequence[str], key: str, problems: list[Problem]) -> list[Any]:
  found: dict[str, Any] = {}
  for index, pattern in enumerate(patterns):
    matched = {path: layer for path, layer in layers.items() if re.search(pattern, path)}
    if not matched:
      near = nearest(pattern, layers, count=3) or list(layers)[:3]
      there = f"The nearest: {', '.join(map(repr, near))}." if near else "The model has no such layer."
      problems.append(Problem(f"{key}.{index}", f"{pattern!r} matches no layer of batch normalisation. {there}"))
    found.update(matched)
  return list(found.values())


@tf.autograph.experimental.do_not_convert
def _never(training: Any = None) -> bool:
  del training
  return False
