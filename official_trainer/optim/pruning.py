"""Models that tensorflow-model-optimization prunes: its wrappers around layers, and what they need of a trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_WRAPPER = "PruneLowMagnitude"


class NoPruning:
  """The null object: no layer is pruned."""

  def begin(self) -> None:
    """Nothing counts steps."""

  def mask(self) -> None:
    """Nothing is masked."""

  def held(self) -> contextlib.AbstractContextManager[None]:
    """No call changes a weight."""
    return contextlib.nullcontext()

  def sparsities(self) -> dict[str, float]:
    """Nothing is reported."""
    return {}


class Pruning:
  """The layers of a model that are wrapped by `tfmot.sparsity.keras.prune_low_magnitude`.

  A wrapper counts its calls in training and moves its mask when its schedule says so; it refuses to be called in
  training before its count was set. A mask is applied, to the variable, when the wrapper is called, also for
  inference; the update after that makes masked weights differ from 0 again, a little, until the next call.
  """

  def __init__(self, layers: list[Any]):
    """Stores the wrappers, which must be built."""
    self._layers = layers

  def begin(self) -> None:
    """Sets the counts of a model that was never trained to 0. Runs eagerly, before a step and after any restore."""
    for layer in self._layers:
      if int(layer.pruning_step.numpy()) < 0:
        layer.pruning_step.assign(0)

  def mask(self) -> None:
    """Makes masked weights 0. Runs eagerly, in cross-replica context."""
    for layer in self._layers:
      for weight, mask, _ in layer.pruning_vars:
        weight.assign(tf.cast(weight * mask, weight.dtype))

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Puts the pruned weights back, after the body, as they were: a call for inference masks them for good."""
    weights = [weight for layer in self._layers for weight, _, _ in layer.pruning_vars]
    values = [tf.identity(weight.read_value()) for weight in weights]
    try:
      yield
    finally:
      for weight, value in zip(weights, values, strict=True):
        weight.assign(value)

  def sparsities(self) -> dict[str, float]:
    """Returns "sparsity" -> the share of masked weights among those of all pruned layers."""
    masks = [mask for layer in self._layers for _, mask, _ in layer.pruning_vars]
    total = sum(mask.shape.num_elements() for mask in masks)
    kept = sum(float(tf.reduce_sum(tf.cast(mask, tf.float64))) for mask in masks)
    return {"sparsity": (total - kept) / total}


def build_pruning(model: tf.Module) -> NoPruning | Pruning:
  """Returns what a model's pruned layers need. The library that wraps them is not imported."""
  layers = [part for part in model.submodules if type(part).__name__ == _WRAPPER]
  return Pruning(layers) if layers else NoPruning()
