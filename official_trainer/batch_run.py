"""How replicas go through their shares of a batch: at once, or in parts with one update of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.data.micro_batches import micro_batch
from official_trainer.data.padding import Batch
from official_trainer.optim.accumulate import Accumulator

Begin = Callable[[Batch], Any]
Step = Callable[[Batch], None]
End = Callable[[Batch, Any], None]


class InOne:
  """Each replica does its share at once."""

  def __init__(self, strategy: tf.distribute.Strategy, options: tf.distribute.RunOptions):
    self._strategy = strategy
    self._options = options

  def run(self, batch: Batch, begin: Begin, step: Step, end: End) -> None:
    """Does one update on every replica. Runs in cross-replica context, traced.

    Args:
      batch: one for each replica.
      begin: what comes first; its result is handed to `end`.
      step: forward, backward and `apply_gradients`.
      end: what comes last.
    """

    def on_replica(batch: Batch) -> None:
      kept = begin(batch)
      step(batch)
      end(batch, kept)

    self._strategy.run(on_replica, args=(batch,), options=self._options)


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

  def run(self, batch: Batch, begin: Begin, step: Step, end: End) -> None:
    """Does one update on every replica. Arguments as those of `InOne.run`; `step` is called for each part."""

    def begin_all(batch: Batch) -> Any:
      self._accumulator.begin()
      return begin(batch)

    def do_part(batch: Batch, index: tf.Tensor) -> None:
      part = micro_batch(batch, index, self._num_parts)
      with self._accumulator.adding(tf.shape(tf.nest.flatten(part.inputs)[0])[0]):
        step(part)

    def end_all(batch: Batch, kept: Any) -> None:
      self._accumulator.apply()
      end(batch, kept)

    def body(index: tf.Tensor) -> tuple[tf.Tensor]:
      self._run(do_part, batch, index)
      return (index + 1,)

    kept = self._run(begin_all, batch)
    # The loop is here and not in the replicas: what they do together, such as summing, cannot be inside one of theirs.
    tf.while_loop(lambda index: index < self._num_parts, body, (tf.constant(0),), parallel_iterations=1)
    self._run(end_all, batch, kept)

  def _run(self, function: Callable[..., Any], *args: Any) -> Any:
    return self._strategy.run(function, args=args, options=self._options)
