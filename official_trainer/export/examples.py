"""What an export is tried on: the first validation examples, or random inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.data.padding import Batch
from official_trainer.export.comparison import Tensors
from official_trainer.task import features_and_labels

NUM_EXAMPLES = 32
VALIDATION_DATA = "validation data"
RANDOM_INPUTS = "random inputs"

_UNKNOWN_SIZE = 8


class Examples:
  """The features of the first validation examples, read when they are first asked for."""

  def __init__(self, batches: Callable[[], Any], warn: Callable[[str], None]):
    """Stores its arguments.

    Args:
      batches: returns a dataset of the validation data.
      warn: told why they cannot be had.
    """
    self._batches = batches
    self._warn = warn
    self._is_read = False
    self._features: Any = None

  @property
  def features(self) -> Any:
    """NumPy arrays [n, ...] with n at most 32, nested as the features are; None if they cannot be had."""
    if not self._is_read:
      self._is_read = True
      try:
        self._features = first_features(self._batches(), NUM_EXAMPLES)
      except Exception as error:  # noqa: BLE001  # Whatever reading data raises: an export needs none.
        self._warn(f"the validation data cannot be read, an export is tried on random inputs: {error}")
    return self._features


def first_features(dataset: Any, num: int) -> Any:
  """Returns the features of the first `num` examples of a dataset, or of all if there are fewer.

  Args:
    dataset: of `Batch`es, or of what a task's steps take.
    num: how many.

  Raises:
    ValueError: if there is none.
  """
  rows: list[Any] = []
  found = 0
  for element in dataset:
    inputs, mask = element if isinstance(element, Batch) else (element, None)
    features = tf.nest.map_structure(np.asarray, features_and_labels(inputs)[0])
    if mask is not None:
      kept = np.asarray(mask) > 0
      features = tf.nest.map_structure(lambda array, kept=kept: array[kept], features)
    found += len(tf.nest.flatten(features)[0])
    rows.append(features)
    if found >= num:
      break
  if not found:
    raise ValueError("there are no examples")
  return tf.nest.map_structure(lambda *parts: np.concatenate(parts)[:num], *rows)


def inputs_of(specs: Mapping[str, tf.TensorSpec], given: Mapping[str, Any] | None) -> tuple[dict[str, np.ndarray], str]:
  """Returns inputs of a signature, and which they are: VALIDATION_DATA or RANDOM_INPUTS.

  Args:
    specs: of the signature's inputs.
    given: name -> array [n, ...] of examples, or None.

  Raises:
    ValueError: if the signature takes strings, of which there are no random ones, and no examples fit.
  """
  if given is not None and (fitting := _fitting(specs, given)) is not None:
    return fitting, VALIDATION_DATA
  generator = np.random.default_rng(0)
  return {name: _random(name, spec, generator) for name, spec in specs.items()}, RANDOM_INPUTS


def num_rows(inputs: Tensors) -> int:
  """Returns the number of examples in inputs; 1 where there is no batch dimension."""
  return max((len(array) for array in inputs.values() if array.ndim), default=1)


def _fitting(specs: Mapping[str, tf.TensorSpec], given: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
  """Returns the examples that a signature takes, as many as it takes; None if they do not fit."""
  found = {}
  for name, spec in specs.items():
    if name not in given:
      return None
    array = np.asarray(given[name])
    if spec.shape.rank and spec.shape[0] is not None:
      array = array[: spec.shape[0]]
    if tf.as_dtype(array.dtype) != spec.dtype or not spec.shape.is_compatible_with(array.shape):
      return None
    found[name] = array
  return found


def _random(name: str, spec: tf.TensorSpec, generator: np.random.Generator) -> np.ndarray:
  if spec.shape.rank is None:
    raise ValueError(f"the input {name!r} has no shape: override Task.serving_examples().")
  sizes = [NUM_EXAMPLES if axis == 0 else _UNKNOWN_SIZE for axis in range(spec.shape.rank)]
  shape = [unknown if size is None else size for size, unknown in zip(spec.shape, sizes, strict=True)]
  if spec.dtype.is_floating or spec.dtype.is_complex:
    return generator.normal(size=shape).astype(spec.dtype.as_numpy_dtype)
  if spec.dtype.is_integer or spec.dtype.is_bool:
    return generator.integers(0, 2, size=shape).astype(spec.dtype.as_numpy_dtype)
  raise ValueError(
    f"the input {name!r} is of type {spec.dtype.name}, of which there are no random values, and no validation example"
    " fits: override Task.serving_examples()."
  )
