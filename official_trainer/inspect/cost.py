"""What a step costs: operations and memory, estimated from its graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer.inspect.flops import count_flops
from official_trainer.inspect.memory import live_bytes, variable_bytes
from official_trainer.inspect.quantity import quantity
from official_trainer.inspect.replica_graphs import FORWARD, UPDATE, ReplicaGraphs


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCost:
  """What one replica's share of a step costs.

  Attributes:
    num_examples: rows of the replica's batch; None if that is not fixed.
    forward_flops: of the forward pass in inference mode. None where shapes are not fixed, as in the next two.
    step_flops: of forward, backward, update and metrics.
    peak_bytes: memory of all variables of the run (weights, slots, averages, sums of gradients), and of the most
      tensors that are alive at one moment of the step (batch, activations, gradients).
    reason: why something is None.
  """

  num_examples: int | None = None
  forward_flops: int | None = None
  step_flops: int | None = None
  peak_bytes: int | None = None
  reason: str | None = None

  @property
  def scalars(self) -> dict[str, float]:
    """What is known, by the names in the reports."""
    values = {
      "gflops_forward": (self.forward_flops, 1e9),
      "gflops_step": (self.step_flops, 1e9),
      "peak_memory_mb": (self.peak_bytes, 1e6),
    }
    return {name: value / unit for name, (value, unit) in values.items() if value is not None}

  def __str__(self) -> str:
    if self.forward_flops is None or self.step_flops is None or self.peak_bytes is None:
      return f"the cost of a step is not estimated: {self.reason}"
    rows = "a batch" if self.num_examples is None else f"{self.num_examples} examples"
    return (
      f"a step of one replica, {rows}: {quantity(self.forward_flops, 'FLOPs')} forward,"
      f" {quantity(self.step_flops, 'FLOPs')} in all; about {quantity(self.peak_bytes, 'B')} of memory at the peak"
    )


def step_cost(trainer: Any, graphs: ReplicaGraphs) -> StepCost:
  """Traces a trainer's forward pass and step once more, and estimates what they cost. Runs nothing.

  Args:
    trainer: a Trainer that has begun to train in this process.
    graphs: its functions.
  """
  if (moving := graphs.moving_shape) is not None:
    return StepCost(reason=moving)
  update = graphs.graph(UPDATE)
  return StepCost(
    num_examples=graphs.num_examples,
    forward_flops=count_flops(graphs.graph(FORWARD)) // graphs.num_replicas,
    step_flops=count_flops(update) // graphs.num_replicas,
    peak_bytes=variable_bytes([*trainer.state.variables(), *trainer.step_variables])
    + live_bytes(update, graphs.first_device),
  )
