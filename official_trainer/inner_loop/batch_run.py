"""How replicas go through their shares of a batch: at once, or in parts with one update of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from official_trainer.data.micro_batches import micro_batch
from official_trainer.data.padding import Batch
from official_trainer.optim.accumulate import Accumulator


class ReplicaStep(NamedTuple):
  """What a replica does for one update; each function runs in replica context, traced.

  Attributes:
    begin: what comes first; its result is handed to `end`.
    part: forward, backward and `apply_gradients` for a batch or a part of one.
    end: what comes last.
  """

  begin: Callable[[Batch], Any]
  part: Callable[[Batch], None]
  end: Callable[[Batch, Any], None]

  def whole(self, batch: Batch) -> None:
    """Does all of it at once."""
    kept = self.begin(batch)
    self.part(batch)
    self.end(batch, kept)


class InOne:
  """Each replica does its share at once."""

  variables: Sequence[tf.Variable] = ()

  def __init__(self, strategy: tf.distribute.Strategy, options: tf.distribute.RunOptions):
    self._strategy = strategy
    self._options = options

  def run(self, batch: Batch, step: ReplicaStep) -> None:
    """Does one update on every replica. Runs in cross-replica context, traced.

    Args:
      batch: one for each replica.
      step: what each of them does.
    """
    self._strategy.run(step.whole, args=(batch,), options=self._options)


class InParts:
  """Each replica does its share part after part, in a loop inside TensorFlow, and then one update."""

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    options: tf.distribute.RunOptions,
    accumulator: Accumulator,
    num_parts: int,
  ):
    self._strategy = strategy
    self._options = options
    self._accumulator = accumulator
    self._num_parts = num_parts

  @property
  def variables(self) -> Sequence[tf.Variable]:
    """Where gradients are added up."""
    return self._accumulator.variables

  def run(self, batch: Batch, step: ReplicaStep) -> None:
    """Does one update on every replica. Arguments as those of `InOne.run`; `step.part` is done for each part."""

    def begin_all(batch: Batch) -> Any:
      self._accumulator.begin()
      return step.begin(batch)

    def do_part(batch: Batch, index: tf.Tensor) -> None:
      part = micro_batch(batch, index, self._num_parts)
      with self._accumulator.adding(tf.shape(tf.nest.flatten(part.inputs)[0])[0]):
        step.part(part)

    def end_all(batch: Batch, kept: Any) -> None:
      self._accumulator.apply()
      step.end(batch, kept)

    def body(index: tf.Tensor) -> tuple[tf.Tensor]:
      self._run(do_part, batch, index)
      return (index + 1,)

    kept = self._run(begin_all, batch)
    # The loop is here and not in the replicas: what they do together, such as summing, cannot be inside one of theirs.
    tf.while_loop(lambda index: index < self._num_parts, body, (tf.constant(0),), parallel_iterations=1)
    self._run(end_all, batch, kept)

  def _run(self, function: Callable[..., Any], *args: Any) -> Any:
    return self._strategy.run(function, args=args, options=self._options)
