"""Walks a traced step: every operation that runs, also those in branches, loops and functions that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
CONTROL_FLOW = frozenset({*_BRANCHES, *LOOPS, *_CALLS})

# Their values are known once shapes are.
_OF_SHAPES = frozenset(
  {
    "Shape",
    "ShapeN",
    "Size",
    "Rank",
    "VariableShape",
    "BroadcastGradientArgs",
    "TensorListLength",
    "TensorListElementShape",
  }
)
# Compilation for a device without text drops them, and with them what only they read.
_DROPPED = frozenset({"Assert"})
_DEEPEST = 200


class Scope:
  """A graph, and how it came to be called.

  Attributes:
    graph: the graph.
    call: the operation that runs it; None for the step itself.
    parent: the scope that `call` is in.
    role: which attribute of `call` it is, such as "body".
  """

  def __init__(self, graph: tf.Graph, call: tf.Operation | None = None, parent: Scope | None = None, role: str = ""):
    self.graph = graph
    self.call = call
    self.parent = parent
    self.role = role

  def operand(self, placeholder: tf.Tensor) -> tuple[tf.Tensor, Scope] | None:
    """Returns what the caller hands over for a placeholder of this graph.

    None for arguments of the step, and for variables of a loop that change from one round to the next.
    """
    if self.call is None or self.parent is None:
      return None
    numbers = [index for index, known in enumerate(self.graph.inputs) if known is placeholder]
    given = _arguments(self.call)
    if not numbers or numbers[0] >= len(given):
      return None
    number = numbers[0]
    if self.call.type in LOOPS and not _is_kept(self._loop_body(), number):
      return None
    return given[number], self.parent

  def _loop_body(self) -> tf.Graph | None:
    return self.graph if self.role == "body" else _function_graph(self.parent.graph, self.call, "body")


class Node(NamedTuple):
  """An operation that runs, and the scope it is in."""

  op: tf.Operation
  scope: Scope


def walk(graph: tf.Graph) -> Iterator[Node]:
  """Yields the operations of a function's graph that have an effect or a reader, inner graphs after their call.

  Args:
    graph: a FuncGraph, traced. What only an assertion's operation reads is left out: compilers drop those.
  """
  yield from _walk(Scope(graph), frozenset())


def running(graph: tf.Graph) -> Sequence[tf.Operation]:
  """Returns the operations that the graph's results or effects need, in the order in which they were made."""
  waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
  reached: set[tf.Operation] = set()
  while waiting:
    op = waiting.pop()
    if op in reached:
      continue
    reached.add(op)
    waiting += op.control_inputs
    if op.type not in _DROPPED:
      waiting += [tensor.op for tensor in op.inputs]
  return [op for op in graph.get_operations() if op in reached]


def called_graphs(graph: tf.Graph, op: tf.Operation) -> Sequence[tf.Graph]:
  """Returns the graphs of the functions that an operation of `graph` runs: branches, parts of loops, calls."""
  graphs = (_function_graph(graph, op, role) for role in _function_names(op))
  return [inner for inner in graphs if inner is not None]


def known_rounds(loop: tf.Operation, graph: tf.Graph) -> int | None:
  """Returns how many rounds a loop of `graph` has, where that is plain to see; else None.

  Plain are a `maximum_iterations` that is a constant, and a condition that compares a counter from one constant to
  another one with a limit that is a constant.
  """
  most = tf.get_static_value(loop.inputs[1]) if len(loop.inputs) > 1 and loop.inputs[1].dtype == tf.int32 else None
  if most is not None and most.ndim == 0 and most > 0:
    return int(most)
  condition, body = (_function_graph(graph, loop, role) for role in ("cond", "body"))
  if condition is None or body is None:
    return None
  test = _maker(condition.outputs[0])
  if test.type != "Less" or (number := _place(test.inputs[0], condition)) is None:
    return None
  step = _maker(body.outputs[number])
  if step.type not in ("Add", "AddV2") or _place(step.inputs[0], body) != number:
    return None
  limit = test.inputs[1]
  if (kept := _place(limit, condition)) is not None and _is_kept(body, kept):
    limit = loop.inputs[kept]
  parts = [_constant(tensor) for tensor in (loop.inputs[number], limit, step.inputs[1])]
  if None in parts or parts[2] <= 0:
    return None
  first, end, stride = parts
  return max(0, -(-(end - first) // stride))


def _constant(tensor: tf.Tensor) -> int | None:
  """Returns the value of an integer that is a constant, or an entry of one, such as a static shape."""
  value = tf.get_static_value(tensor)
  if value is None and tensor.op.type == "StridedSlice" and tensor.shape.rank == 0:
    entries, place = (tf.get_static_value(part) for part in tensor.op.inputs[:2])
    if entries is not None and place is not None and entries.ndim == place.size == 1:
      value = entries[place[0]]
  return None if value is None or value.ndim else int(value)


def _maker(tensor: tf.Tensor) -> tf.Operation:
  while tensor.op.type == "Identity":
    tensor = tensor.op.inputs[0]
  return tensor.op


def _place(tensor: tf.Tensor, graph: tf.Graph) -> int | None:
  """Returns which argument of a graph a tensor is."""
  while tensor.op.type == "Identity":
    tensor = tensor.op.inputs[0]
  return next((number for number, known in enumerate(graph.inputs) if known is tensor), None)


def is_fixed(tensor: tf.Tensor, scope: Scope) -> bool:
  """Whether a compiler knows a tensor's value when it knows all shapes: constants, shapes, and what is made of them."""
  return _is_fixed(tensor, scope, 0)


def resolved(tensor: tf.Tensor, scope: Scope) -> tuple[tf.Tensor, Scope]:
  """Follows an argument of an inner graph to where its value is made; returns that, and the scope it is in."""
  while True:
    if tensor.op.type == "Identity":
      tensor = tensor.op.inputs[0]
    elif tensor.op.type == "Placeholder" and (given := scope.operand(tensor)) is not None:
      tensor, scope = given
    else:
      return tensor, scope


def _walk(scope: Scope, above: frozenset[int]) -> Iterator[Node]:
  for op in running(scope.graph):
    yield Node(op, scope)
    for role in _function_names(op):
      inner = _function_graph(scope.graph, op, role)
      if inner is not None and id(inner) not in above:
        yield from _walk(Scope(inner, op, scope, role), above | {id(inner)})


def _function_names(op: tf.Operation) -> dict[str, str]:
  """Returns the functions that an operation calls, by the attribute that names each."""
  if op.type not in CONTROL_FLOW:
    return {}
  names = {}
  for key, value in op.node_def.attr.items():
    if value.HasField("func"):
      names[key] = value.func.name
    for number, function in enumerate(value.list.func):
      names[f"{key}.{number}"] = function.name
  return names


def _function_graph(graph: tf.Graph, op: tf.Operation, role: str) -> tf.Graph | None:
  function = graph._get_function(_function_names(op)[role])  # noqa: SLF001  # No public way from a name to its graph.
  return getattr(function, "graph", None)


def _arguments(call: tf.Operation) -> Sequence[tf.Tensor]:
  return call.inputs[1:] if call.type in _BRANCHES else call.inputs


def _is_kept(body: tf.Graph | None, number: int) -> bool:
  """Whether a loop hands its variable on as it got it."""
  if body is None or number >= len(body.outputs):
    return False
  tensor = body.outputs[number]
  while tensor.op.type == "Identity":
    tensor = tensor.op.inputs[0]
  return tensor is body.inputs[number]


def _is_fixed(tensor: tf.Tensor, scope: Scope, depth: int) -> bool:
  op = tensor.op
  if op.type == "Const" or op.type in _OF_SHAPES:
    return True
  if tensor.dtype in (tf.resource, tf.variant) or (tensor.dtype.is_floating and tensor.shape.rank != 0):
    return False  # Data: whoever computes a shape from it does not know it in advance.
  if op.type == "Placeholder":
    given = scope.operand(tensor)
    return given is not None and depth < _DEEPEST and _is_fixed(*given, depth + 1)
  if op.type in _CALLS:
    inner = _function_graph(scope.graph, op, "f")
    known = inner is not None and depth < _DEEPEST
    return known and _is_fixed(inner.outputs[tensor.value_index], Scope(inner, op, scope, "f"), depth + 1)
  if op.type in LOOPS:
    body = _function_graph(scope.graph, op, "body")
    return _is_kept(body, tensor.value_index) and _is_fixed(op.inputs[tensor.value_index], scope, depth + 1)
  # Reads of variables, random numbers and inputs of the pipeline have an input that is a resource, or none.
  if depth >= _DEEPEST or not op.inputs or op.op_def.is_stateful or op.type in _BRANCHES:
    return False
  return all(_is_fixed(part, scope, depth + 1) for part in op.inputs)
