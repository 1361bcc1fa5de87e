"""An estimate of the memory that a step takes, from its graph."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import tensorflow as tf

from official_trainer.inspect.graph_walk import called_graphs, running

# Their results are views of what they are given, or of a variable, and take no memory of their own.
_VIEWS = frozenset({"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient"})


def variable_bytes(variables: Iterable[tf.Variable]) -> int:
  """Returns the memory of variables on one replica."""
  return sum(
    math.prod(variable.shape) * variable.dtype.size
    for variable in variables
    if variable.shape.is_fully_defined() and variable.dtype not in (tf.string, tf.resource, tf.variant)
  )


def live_bytes(graph: tf.Graph, device: str = "") -> int:
  """Returns the largest sum of tensors that are alive at one moment of a traced function.

  The operations are taken one after the other in the order in which they were made; a tensor is alive from the
  operation that makes it to the last one that reads it. So gradients and activations count as long as something needs
  them, the batch to the end of the step, and variables not at all. Nothing is fused or computed in place.

  Args:
    graph: a FuncGraph. Tensors of unknown shape, strings, and lists of loops count as 0.
    device: operations that are placed on another device than this one count as 0. Empty: all count.
  """
  return _peak(graph, device, is_outermost=True)


def _peak(graph: tf.Graph, device: str, *, is_outermost: bool) -> int:
  ops = running(graph)
  last_use = {_owner(tensor).name: len(ops) for tensor in graph.outputs}
  for index, op in enumerate(ops):
    for tensor in op.inputs:
      name = _owner(tensor).name
      last_use[name] = max(last_use.get(name, index), index)
  ends: dict[int, int] = defaultdict(int)
  alive = peak = 0
  for index, op in enumerate(ops):
    inner = max((_peak(called, device, is_outermost=False) for called in called_graphs(graph, op)), default=0)
    peak = max(peak, alive + inner)
    for tensor in op.outputs if _makes_room(op, device, is_outermost) else ():
      ends[len(ops) if op.type == "Placeholder" else last_use.get(tensor.name, index)] += _size(tensor)
      alive += _size(tensor)
    peak = max(peak, alive)
    alive -= ends.pop(index, 0)
  return peak


def _makes_room(op: tf.Operation, device: str, is_outermost: bool) -> bool:
  """Whether an operation's results take memory that nobody else counts."""
  if op.type == "Placeholder":
    return is_outermost  # Those of the step itself are the batch; in a function that is called, the caller's tensors.
  if op.type == "ReadVariableOp" or op.type in _VIEWS:
    return False
  return not (device and op.device and op.device != device)


def _owner(tensor: tf.Tensor) -> tf.Tensor:
  while tensor.op.type in _VIEWS:
    tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
  return tensor


def _size(tensor: tf.Tensor) -> int:
  if tensor.dtype in (tf.string, tf.resource, tf.variant) or not tensor.shape.is_fully_defined():
    return 0
  return math.prod(tensor.shape) * tensor.dtype.size
