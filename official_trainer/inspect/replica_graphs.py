"""A replica's forward pass and update as functions of their own, traced anew. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

FORWARD = "forward"
UPDATE = "update"


class ReplicaGraphs:
  """What the replicas of a trainer compute, apart from what the host does around it.

  For a trainer that has begun to train in this process: its variables are made, and its input is there to be asked for
  the shapes of a batch. Call the methods under the strategy's scope.
  """

  def __init__(self, trainer: Any):
    """Asks the trainer's input for the specs of one replica's batch.

    Args:
      trainer: a Trainer.
    """
    self._trainer = trainer
    self._strategy = trainer.strategy
    found: list[Any] = []

    @tf.function
    def look(iterator: Any) -> None:
      batch = trainer.train_input.to_replicas(trainer.next_train_inputs(iterator))
      self._strategy.run(lambda part: found.append(tf.nest.map_structure(_spec, part)), args=(batch,))

    look.get_concrete_function(trainer.train_iterator)
    self._batch = found[0]
    self._functions: dict[str, Any] = {}

  @property
  def num_replicas(self) -> int:
    """How many replicas this process computes; a traced function holds the operations of all of them."""
    return self._strategy.num_replicas_in_sync // self._trainer.peers.num

  @property
  def num_replicas_in_sync(self) -> int:
    """How many replicas there are in all processes."""
    return self._strategy.num_replicas_in_sync

  @property
  def first_device(self) -> str:
    """Where the first of several replicas of this process computes; empty for one alone."""
    return self._strategy.extended.worker_devices[0] if self.num_replicas > 1 else ""

  @property
  def specs(self) -> list[Any]:
    """The specs of one replica's batch, without structure."""
    return [spec for spec in tf.nest.flatten(self._batch) if spec is not None]

  @property
  def moving_shape(self) -> str | None:
    """Says which part of the batch has a shape that is not known before it comes; None if there is none."""
    for spec in tf.nest.flatten(self._batch, expand_composites=True):
      if spec is not None and not spec.shape.is_fully_defined():
        return f"a part of the batch has the shape {spec.shape}, which is not fixed"
    return None

  @property
  def num_examples(self) -> int | None:
    """Rows of one replica's batch; None if that is not fixed."""
    sizes = [spec.shape[0] for spec in self.specs if getattr(spec, "shape", None) and spec.shape.rank]
    return sizes[0] if sizes else None

  def function(self, name: str) -> Any:
    """Returns a `tf.function` of `specs`, which does on each replica what it is named after; always the same one.

    Args:
      name: FORWARD, the model's outputs in inference mode (`task.inference_step`); or UPDATE, one training step:
        forward, backward, update and metrics.
    """
    if name not in self._functions:
      step = {FORWARD: self._forward, UPDATE: self._trainer.update_replicas}[name]
      # The program of one replica alone may be given to XLA.
      jit_compile = True if self.num_replicas_in_sync == 1 else None
      self._functions[name] = tf.function(self._taking_parts(step), jit_compile=jit_compile)
    return self._functions[name]

  def graph(self, name: str) -> tf.Graph:
    """Returns the graph of a function, of all replicas of this process; traces it at the first call."""
    return self.function(name).get_concrete_function(*self.specs).graph

  def _taking_parts(self, step: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns `step` as a function of tensors, without structure, that returns tensors."""

    def run(*parts: Any) -> Any:
      rest = iter(parts)
      leaves = [None if spec is None else next(rest) for spec in tf.nest.flatten(self._batch)]
      outputs = step(tf.nest.pack_sequence_as(self._batch, leaves))
      results = [self._strategy.experimental_local_results(part) for part in tf.nest.flatten(outputs)]
      return [part for parts in results for part in parts if part is not None]

    return run

  def _forward(self, batch: Any) -> Any:
    inputs = batch.inputs
    features = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 2 else inputs
    return self._strategy.run(lambda part: self._trainer.task.inference_step(part, self._trainer.model), (features,))


def _spec(leaf: Any) -> Any:
  return None if leaf is None else tf.type_spec_from_value(leaf)
