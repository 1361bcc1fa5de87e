"""Examples with random access: what the indexed input (foundation F1) reads from."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.data import seeds as seeds_lib

Structure = Any
"""A nested structure (tuple, dict, named tuple) of tensors, or of tensor specs."""

SEEDS_SPEC = tf.TensorSpec([None, 2], tf.int32)


class RandomAccessSource(abc.ABC):
  """A finite set of examples, any of which can be read at any time.

  `read` must be a pure function of its arguments. That is all it takes for an input that resumes at
  any step at once, and gives any number of replicas the same global batches.
  """

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of examples."""

  @abc.abstractmethod
  def read(self, indices: tf.Tensor, seeds: tf.Tensor) -> Structure:
    """Reads one batch. Called while a `Dataset.map` is traced: no Python side effects.

    Args:
      indices: int64 [n], each in [0, len).
      seeds: int32 [n, 2], a function of the run's seed and each example's place in the stream. The
        only source of randomness; a source without augmentation ignores it.

    Returns:
      A nested structure of dense tensors [n, ...].
    """

  @property
  @abc.abstractmethod
  def element_spec(self) -> Structure:
    """A `tf.TensorSpec` [None, ...] for each tensor that `read` returns."""

  def tensors(self) -> tuple[tf.Tensor, ...]:
    """Returns the tensors that examples are read from, for a source in memory; none for others."""
    return ()

  def reading(self, tensors: Any) -> RandomAccessSource:
    """Returns this source, reading from copies of `tensors()`, such as those of another machine."""
    del tensors
    return self

  def map(self, fn: Callable[[Structure], Structure]) -> RandomAccessSource:
    """Returns a source whose batches are `fn(batch)`.

    `fn` sees a whole batch [n, ...] and keeps its size and order.
    """
    return _Augmented(self, lambda batch, seeds: fn(batch))

  def augment(self, fn: Callable[[Structure, tf.Tensor], Structure]) -> RandomAccessSource:
    """Returns a source whose batches are `fn(batch, seeds)`.

    `seeds` is int32 [n, 2] and differs between examples and between epochs. `fn` may use stateless
    random ops only; `data/seeds.py` draws for a whole batch at once.
    """
    return _Augmented(self, fn)


_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def reads_through_python(source: RandomAccessSource) -> bool:
  """Says whether `source.read` calls Python code, which only the process that made it can run."""
  traced = tf.function(source.read).get_concrete_function(tf.TensorSpec([None], tf.int64), SEEDS_SPEC)
  graph = traced.graph.as_graph_def()
  nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
  return any(node.op in _PYTHON_OPS for node in nodes)


class _Augmented(RandomAccessSource):
  """A source with a function over its batches."""

  def __init__(self, base: RandomAccessSource, fn: Callable[[Structure, tf.Tensor], Structure]):
    self._base = base
    self._fn = fn

  def __len__(self) -> int:
    return len(self._base)

  def read(self, indices: tf.Tensor, seeds: tf.Tensor) -> Structure:
    # Functions of one chain must not draw the same numbers.
    return self._fn(self._base.read(indices, seeds_lib.refold(seeds)), seeds)

  def tensors(self) -> tuple[tf.Tensor, ...]:
    return self._base.tensors()

  def reading(self, tensors: Any) -> RandomAccessSource:
    return _Augmented(self._base.reading(tensors), self._fn)

  @functools.cached_property
  def element_spec(self) -> Structure:
    traced = tf.function(self._fn).get_concrete_function(self._base.element_spec, SEEDS_SPEC)
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), traced.structured_outputs)
