"""Randomness as a function of the step (foundation F2).

tf-keras layers such as `Dropout` draw from a `tf.random.Generator` each, and tf-keras leaves the generators' state out
of checkpoints. Instead of saving it, the trainer assigns it at the start of every training step from (seed, step,
replica, generator), so that a step can be replayed, and a resumed run draws what the uninterrupted run would have
drawn.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tf_keras
from absl import logging

from official_trainer.user_code import user_place

# Ops that draw from a hidden, unsaved state. The Stateless* family and Generator ops are not among them.
STATEFUL_RANDOM_OPS = frozenset(
  {
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "RandomShuffle",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "Multinomial",
    "RandomCrop",
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "StatefulRandomBinomial",
  }
)

_MASK64 = (1 << 64) - 1
_EVALUATION_KEY = 0x2545F4914F6CDD1D
# Draws that a batch of an evaluation may make before they would be those of the next one.
_DRAWS_A_BATCH = 1 << 40
_REPLICA_STRIDE = np.int64(0x1E3779B97F4A7C15)


def draw_seed() -> int:
  """Draws a seed in [0, 2**31) from the operating system, for a run whose config leaves `runtime.seed` unset."""
  return random.SystemRandom().randrange(2**31)


def seed_everything(seed: int) -> None:
  """Seeds Python, NumPy and TensorFlow, and makes tf-keras layers draw from `tf.random.Generator`.

  Must run before the model is built: layers choose their kind of generator when they are constructed.
  """
  tf_keras.utils.set_random_seed(seed)
  tf_keras.backend.experimental.enable_tf_random_generator()


class StepKeyedRandom:
  """Assigns the state of a model's generators from (seed, step, replica, generator index)."""

  def __init__(self, model: tf.Module, seed: int):
    """Finds the model's generators; creates no variables.

    Args:
      model: a built model.
      seed: the run's seed.
    """
    self.generators = _generators_of(model)
    self._keys = [_mix(seed, index) for index in range(len(self.generators))]

  def __len__(self) -> int:
    return len(self.generators)

  def assign(self, step: tf.Tensor) -> None:
    """Sets every generator for this step. Runs in replica context, before anything is drawn.

    The Philox counter's upper half is the step and its lower half starts at 0, so that the draws of two steps never
    overlap; the key is a mix of seed, generator and replica.

    Args:
      step: int64 scalar, number of completed updates.
    """
    for generator, key in self._keyed():
      generator.state.assign(tf.stack([tf.constant(0, tf.int64), tf.cast(step, tf.int64), key]))

  def assign_for_evaluation(self, batch: tf.Tensor) -> None:
    """Sets every generator for a batch of an evaluation. Each evaluation draws the same numbers, others than training.

    Args:
      batch: int64 scalar, how many batches of this evaluation came before.
    """
    for generator, key in self._keyed(_EVALUATION_KEY):
      first = tf.cast(batch, tf.int64) * tf.constant(_DRAWS_A_BATCH, tf.int64)
      generator.state.assign(tf.stack([first, tf.constant(0, tf.int64), key]))

  def _keyed(self, use: int = 0) -> Iterator[tuple[tf.random.Generator, tf.Tensor]]:
    """Yields each generator with its key for this replica, of which each use has another one."""
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
    for generator, key in zip(self.generators, self._keys, strict=True):
      yield generator, tf.constant(key ^ use, tf.int64) + replica * _REPLICA_STRIDE


@dataclasses.dataclass(frozen=True)
class StatefulOp:
  """A random op whose hidden state no checkpoint can hold."""

  kind: str
  name: str
  where: str

  def __str__(self) -> str:
    return f"{self.kind} at {self.where}"


def unsaved_randomness(graph: tf.Graph) -> str | None:
  """Says which ops of a traced step make a resumed run differ, and what to do about it; None if there are none."""
  found = dict.fromkeys(str(op) for op in stateful_random_ops(graph))  # Each replica has its copy of an op.
  if not found:
    return None
  return (
    "the training step draws from random state that no checkpoint holds, so that a resumed run will differ:\n  "
    + "\n  ".join(found)
    + "\nUse tf-keras layers, or tf.random.stateless_* with a seed made from the step."
  )


def look_for_unsaved_randomness(*, refuse: bool) -> None:
  """Warns of ops in the step being traced whose state no checkpoint can hold. Does nothing in an eager step.

  Raises:
    ValueError: in place of the warning, if `refuse`: because `trainer.exact_resume` is set.
  """
  text = None if tf.executing_eagerly() else unsaved_randomness(tf.compat.v1.get_default_graph())
  if text is None:
    return
  if refuse:
    raise ValueError(f"trainer.exact_resume is set, but {text}")
  logging.warning("%s", text[0].upper() + text[1:])


def stateful_random_ops(graph: tf.Graph) -> Sequence[StatefulOp]:
  """Lists the stateful random ops of a traced step, with the line of user code that made each.

  Args:
    graph: the graph being traced (functions called from it are searched too, without line numbers).
  """
  found = [
    StatefulOp(op.type, op.name, _user_line(op)) for op in graph.get_operations() if op.type in STATEFUL_RANDOM_OPS
  ]
  for function in graph.as_graph_def(add_shapes=False).library.function:
    for node in function.node_def:
      if node.op in STATEFUL_RANDOM_OPS:
        found.append(StatefulOp(node.op, node.name, f"function {function.signature.name}"))
  return found


def _user_line(op: tf.Operation) -> str:
  place = user_place(op.traceback)
  return f"{place.file}:{place.line}" if place else "an unknown line"


def _generators_of(model: tf.Module) -> list[tf.random.Generator]:
  """Collects each layer's generator, in the order in which the layers were attached to the model."""
  generators: list[tf.random.Generator] = []
  for module in _modules_of(model):
    holder = getattr(module, "_random_generator", None)
    generator = getattr(holder, "_generator", None)
    if generator is not None and not any(generator is known for known in generators):
      generators.append(generator)
  return generators


def _modules_of(model: tf.Module) -> Iterator[tf.Module]:
  # `model.submodules` fails on recurrent cells with dropout, whose cache of masks has keys that cannot be sorted.
  if not isinstance(model, tf_keras.layers.Layer):
    yield from (model, *model.submodules)
    return
  for module in model._flatten_modules():  # noqa: SLF001  # What tf-keras collects weights by.
    yield module
    if not isinstance(module, tf_keras.layers.Layer):
      yield from module.submodules


def _mix(seed: int, index: int) -> int:
  """SplitMix64 finaliser (Steele, Lea and Flood 2014, section 5) over seed and index, as a signed 64-bit integer."""
  value = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & _MASK64
  value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
  value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
  value ^= value >> 31
  return value - (1 << 64) if value >= 1 << 63 else value
