"""Whether an experiment would run on a TPU, found without one (`--mode=check_tpu`).

    build the trainer under one CPU replica  ->  trace the training and the evaluation step  ->  of each replica's part
      inputs: static shapes, numbers     graph: every operation by the rules     XLA: compile

What the host does (input pipelines, `next_train_inputs`, `next_eval_inputs`, `aggregate_logs`) is not looked at.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.inspect import tpu_rules
from official_trainer.inspect.finding import Finding, merged
from official_trainer.inspect.graph_walk import LOOPS, Node, walk
from official_trainer.inspect.layer_places import LayerPlaces, recorded_layers
from official_trainer.inspect.replica_steps import (
  RecordingStrategy,
  ReplicaStep,
  argument_specs,
  is_static,
  refusal,
  replica_steps,
)
from official_trainer.user_code import Place, place_of, user_place

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuReport:
  """What a check found.

  Attributes:
    findings: everything that would break, in the order of the steps.
    num_operations: how many operations were looked at.
    compiled: the steps that XLA compiled.
  """

  findings: tuple[Finding, ...]
  num_operations: int
  compiled: tuple[str, ...]

  @property
  def is_clean(self) -> bool:
    return not self.findings

  def __str__(self) -> str:
    compiled = f"compiled by XLA: {' and '.join(self.compiled) or 'neither'} step"
    looked = f"{self.num_operations} operations looked at, {compiled}"
    if self.is_clean:
      return f"nothing found that a TPU would refuse ({looked})"
    count = len(self.findings)
    head = f"{count} finding{'s' if count != 1 else ''} ({looked})"
    return "\n\n".join([head, *map(str, self.findings)])


def check_tpu(build: Callable[[], Any]) -> TpuReport:
  """Traces and compiles the steps of a trainer, and returns everything that a TPU would refuse. Runs no step.

  Args:
    build: returns the Trainer, for training and evaluation, with its model; called once, under a strategy's scope.
  """
  strategy = RecordingStrategy()
  with strategy.scope(), recorded_layers() as layers:
    trainer = build()
  check = _Check(trainer, strategy, layers)
  check.look_at("training", trainer.train_step, check.train_dataset)
  check.look_at("evaluation", trainer.eval_step, lambda: trainer.eval_dataset)
  return TpuReport(findings=merged(check.findings), num_operations=check.num_operations, compiled=tuple(check.compiled))


class _Check:
  """One trainer's steps, one after the other."""

  def __init__(self, trainer: Any, strategy: RecordingStrategy, layers: LayerPlaces):
    self._trainer = trainer
    self._strategy = strategy
    self._layers = layers
    self.findings: list[Finding] = []
    self.num_operations = 0
    self.compiled: list[str] = []

  def train_dataset(self) -> Any:
    self._trainer.train_loop_begin()
    return self._trainer.train_dataset

  def look_at(self, name: str, step: Callable[[Any], Any], dataset: Callable[[], Any]) -> None:
    """Adds what is found in a step.

    Args:
      name: "training" or "evaluation".
      step: takes an iterator.
      dataset: returns what the iterator is of.
    """
    try:
      traced = replica_steps(self._strategy, step, dataset())
    except Exception as error:  # noqa: BLE001  # Whatever the user's code raises while it is traced.
      logging.debug("The %s step could not be traced.", name, exc_info=True)
      self.findings.append(_untraceable(name, error))
      return
    for replica_step in traced:
      self._look_at_replica(name, replica_step)

  def _look_at_replica(self, name: str, step: ReplicaStep) -> None:
    found = list(self._in_inputs(name, step))
    nodes = list(walk(step.function.graph))
    for node in nodes:
      rules = tpu_rules.rules_of(node)
      found += [_of_node(name, rule, node, self._place(node)) for rule in rules]
    self.num_operations += len(nodes)
    self.findings += _strongest(found)
    if not is_static(step) or any(finding.kind == tpu_rules.LIST.kind for finding in found):
      return  # Lists without a bound make XLA abort the process.
    refused = refusal(step)
    if refused is None:
      self.compiled.append(name)
      return
    # XLA stops at the first thing it refuses, which may be one that is found already.
    node = next((node for node in nodes if node.op.name in refused.names), None)
    place = self._place(node) if node else None
    if place in {finding.place for finding in found} or (found and node is None):
      return
    self.findings.append(
      Finding(
        kind="refused by XLA",
        op=node.op.type if node else "the whole",
        name=node.op.name if node else "",
        steps=(name,),
        place=place,
        why=refused.text,
        instead="make shapes, axes and loop bounds static in the operation that is named, or move it to the host.",
      )
    )

  def _in_inputs(self, name: str, step: ReplicaStep) -> Iterator[Finding]:
    for index, spec in enumerate(argument_specs(step)):
      rules = [tpu_rules.TYPES[spec.dtype]] if spec.dtype in tpu_rules.TYPES else []
      if not spec.shape.is_fully_defined():
        rules.append(tpu_rules.INPUT_DIMENSION)
      for rule in rules:
        yield Finding(
          kind=rule.kind,
          op=f"input {index} of the replicas ({spec.dtype.name} {_shape_of(spec)})",
          steps=(name,),
          place=_of_data(self._trainer.task),
          why=rule.why,
          instead=rule.instead,
        )

  def _place(self, node: Node) -> Place | None:
    """Returns the user's line that made an operation, the loop that keeps its results, or the layer it is in."""
    readers = {reader for tensor in node.op.outputs for reader in tensor.consumers()}
    ops = [node.op, *(reader for reader in readers if reader.type in LOOPS)]
    places = [place for place in (user_place(op.traceback) for op in ops) if place is not None]
    users = next((place for place in places if place.is_users), None)
    return users or self._layers.place_of(node) or next(iter(places), None)


def _of_node(name: str, rule: tpu_rules.Rule, node: Node, place: Place | None) -> Finding:
  return Finding(
    kind=rule.kind,
    op=node.op.type,
    name=node.op.name,
    steps=(name,),
    place=place,
    why=rule.why,
    instead=rule.instead,
  )


# What follows from a stronger fault of the same line.
_WEAK = (tpu_rules.STRING.kind, tpu_rules.NO_KERNEL.kind, tpu_rules.UNKNOWN_DIMENSION.kind)


def _strongest(found: list[Finding]) -> list[Finding]:
  """Leaves out what a line is found guilty of only because of something worse in it."""
  worse = {finding.place for finding in found if finding.kind not in _WEAK and finding.place is not None}
  return [finding for finding in found if finding.kind not in _WEAK or finding.place not in worse]


def _of_data(task: Any) -> Place | None:
  """Returns where a task makes its data."""
  places = [place_of(getattr(type(task), name, None)) for name in ("build_inputs", "build_source")]
  return next((place for place in places if place is not None and place.is_users), places[0])


def _shape_of(spec: tf.TensorSpec) -> str:
  """Returns a shape in words that are the same for both steps."""
  if spec.shape.rank is None:
    return "of unknown rank"
  sizes = [str(size) for size in spec.shape]
  if sizes and spec.shape[0] is not None:
    sizes[0] = "batch"
  return f"[{', '.join(sizes)}]"


def _untraceable(name: str, error: Exception) -> Finding:
  frames = [
    traceback.FrameSummary(file, int(line), function, lookup_line=False)
    for file, line, function in _FRAME.findall(str(error))
  ]
  place = user_place(frames) or user_place(traceback.extract_tb(error.__traceback__))
  last = [line.strip() for line in str(error).splitlines() if line.strip()]
  return Finding(
    kind="cannot be traced",
    op=type(error).__name__,
    steps=(name,),
    place=place,
    why=last[-1] if last else type(error).__name__,
    instead="the step must be a graph: no .numpy(), no Python branches on the values of tensors.",
  )
