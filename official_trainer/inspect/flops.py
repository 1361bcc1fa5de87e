"""How many floating point operations a traced function takes."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator

import tensorflow as tf

from official_trainer.inspect.graph_walk import Scope, known_rounds, walk


def count_flops(graph: tf.Graph) -> int:
  """Counts the floating point operations of a traced function, a multiplication and an addition as two.

  TensorFlow's profiler counts each graph, those of functions that are called included; what it knows nothing of is
  counted here for the operations that matter (`_OWN`), and is 0 for the others, such as batch normalisation's. Of
  branches all count, and of a loop one round where it is not plain how many there are (`graph_walk.known_rounds`).

  Args:
    graph: a FuncGraph whose shapes are static. Where they are not, the operation counts as 0.
  """
  times: dict[Scope, int] = {}
  profiled: dict[int, int] = {}
  total = 0
  for node in walk(graph):
    scope = node.scope
    if scope not in times:  # What calls it came before.
      times[scope] = 1 if scope.parent is None else times[scope.parent] * _rounds(scope)
      if id(scope.graph) not in profiled:
        profiled[id(scope.graph)] = _profiled(scope.graph)
      total += times[scope] * profiled[id(scope.graph)]
    if node.op.type in _OWN and _is_static(node.op):
      total += times[scope] * _OWN[node.op.type](node.op)
  return total


def _rounds(scope: Scope) -> int:
  """Returns how often a scope runs when its call runs once."""
  if scope.role != "body" or scope.call is None or scope.parent is None:
    return 1
  rounds = known_rounds(scope.call, scope.parent.graph)
  return 1 if rounds is None else rounds


def _profiled(graph: tf.Graph) -> int:
  """Returns the profiler's count of a graph, without what is counted here: other libraries may have taught it that."""
  options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
  options["output"] = "none"
  with _quiet():
    found = [tf.compat.v1.profiler.profile(graph=graph, cmd="op", options=options)]
  total = 0
  while found:  # Each type of operation is the child of another one.
    node = found.pop()
    found += node.children
    total += 0 if node.name in _OWN else node.float_ops
  return total


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps TensorFlow from saying that its own profiler uses functions that are deprecated."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)


def _is_static(op: tf.Operation) -> bool:
  return all(tensor.shape.is_fully_defined() for tensor in [*op.inputs, *op.outputs])


def _einsum(op: tf.Operation) -> int:
  """Two for each combination of indices that are summed or kept."""
  terms = op.get_attr("equation").decode().partition("->")[0].split(",")
  sizes: dict[str, int] = {}
  for term, tensor in zip(terms, op.inputs, strict=True):
    shape = list(tensor.shape)
    head, dots, tail = term.partition("...")
    extra = len(shape) - len(head) - len(tail)
    # The sizes behind an ellipsis, counted from its end, since shapes are broadcast from there.
    labels = [*head, *(f"...{extra - number}" for number in range(extra if dots else 0)), *tail]
    for label, size in zip(labels, shape, strict=True):
      sizes[label] = max(sizes.get(label, 1), size)
  per_combination = 2 if len(terms) > 1 else 1
  return per_combination * math.prod(sizes.values())


def _input_gradient(op: tf.Operation) -> int:
  """The same as the convolution's own: each output with each weight it came from."""
  filters, gradient = op.inputs[1].shape, op.inputs[2].shape
  return 2 * math.prod(gradient) * math.prod(_window(op, filters))


def _filter_gradient(op: tf.Operation) -> int:
  filters, gradient = op.outputs[0].shape, op.inputs[2].shape
  return 2 * math.prod(gradient) * math.prod(_window(op, filters))


def _window(op: tf.Operation, filters: tf.TensorShape) -> list[int]:
  """Returns the dimensions of a filter that one output is the sum over."""
  return list(filters[:2]) if op.type.startswith("Depthwise") else list(filters[:-1])


_OWN: dict[str, Callable[[tf.Operation], int]] = {
  "Einsum": _einsum,
  "DepthwiseConv2dNativeBackpropInput": _input_gradient,
  "DepthwiseConv2dNativeBackpropFilter": _filter_gradient,
  "Conv3DBackpropInputV2": _input_gradient,
  "Conv3DBackpropFilterV2": _filter_gradient,
}
