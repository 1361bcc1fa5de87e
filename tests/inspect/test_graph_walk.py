from collections import Counter

import pytest
import tensorflow as tf

from official_trainer.inspect.graph_walk import is_fixed, resolved, walk


def graph_of(function, *specs):
  return tf.function(function).get_concrete_function(*specs).graph


def types(function, *specs):
  return Counter(node.op.type for node in walk(graph_of(function, *specs)))


VECTOR = tf.TensorSpec([4])


def test_operations_of_branches_loops_and_functions_are_found():
  @tf.function
  def called(x):
    return tf.sin(x)

  def step(x):
    if tf.reduce_sum(x) > 0:
      x = tf.cos(x)
    for _ in tf.range(3):
      x = tf.tan(x)
    return called(x)

  found = types(step, VECTOR)
  assert [found[kind] for kind in ("Sin", "Cos", "Tan")] == [1, 1, 1]


def test_a_function_that_is_called_twice_is_walked_twice_and_each_call_has_its_scope():
  @tf.function
  def called(x):
    return tf.sin(x)

  nodes = [node for node in walk(graph_of(lambda x: called(called(x)), VECTOR)) if node.op.type == "Sin"]
  assert len(nodes) == 2
  assert nodes[0].scope.call is not nodes[1].scope.call


def test_what_nobody_reads_and_the_texts_of_assertions_are_left_out():
  def step(x):
    tf.sin(x)
    tf.debugging.assert_less(x, 2.0, message="text")
    return tf.tan(x)

  nodes = list(walk(graph_of(step, VECTOR)))
  found = Counter(node.op.type for node in nodes)
  assert (found["Tan"], found["Assert"], found["Sin"]) == (1, 1, 0)
  assert [node.op.name for node in nodes if any(tensor.dtype == tf.string for tensor in node.op.outputs)] == []


def test_what_has_an_effect_is_found_though_nobody_reads_it():
  variable = tf.Variable(0.0)
  found = types(lambda x: [variable.assign(tf.reduce_sum(x)), tf.constant(1)][1], VECTOR)
  assert found["AssignVariableOp"] == 1


def fixed(function, *specs):
  """Whether the size that a function fills a tensor with is fixed."""
  (fill,) = [node for node in walk(graph_of(function, *specs)) if node.op.type == "Fill"]
  return is_fixed(fill.op.inputs[0], fill.scope)


@tf.function
def size_of(x):
  return tf.shape(x)[0] + 1


@tf.function
def count_of(x):
  return tf.reduce_sum(tf.cast(x > 0, tf.int32))


@tf.function
def filled(size):
  return tf.fill([size], 1.0)


def kept_by_a_loop(x):
  """The size is a variable of the loop that no round changes."""
  size = tf.shape(x)[0] * 2
  return tf.while_loop(
    lambda i, n, total: i < 3, lambda i, n, total: (i + 1, n, total + tf.reduce_sum(tf.fill([n], 1.0))), [0, size, 0.0]
  )[2]


def changed_by_a_loop(x):
  return tf.while_loop(
    lambda n, total: n < 8, lambda n, total: (n * 2, total + tf.reduce_sum(tf.fill([n], 1.0))), [tf.size(x), 0.0]
  )[1]


ANY = tf.TensorSpec([None])


@pytest.mark.parametrize(
  "function",
  [
    lambda x: tf.fill(tf.shape(x) * 2, 1.0),
    lambda x: tf.fill([size_of(x)], 1.0),
    lambda x: filled(tf.shape(x)[0]),
    lambda x: filled(size_of(x)),
    kept_by_a_loop,
  ],
)
def test_sizes_that_follow_from_shapes_are_fixed(function):
  assert fixed(function, ANY)


VARIABLE = []


def from_a_variable(x):
  if not VARIABLE:
    VARIABLE.append(tf.Variable(2))
  return tf.fill([VARIABLE[0]], 1.0)


@pytest.mark.parametrize(
  "function",
  [
    lambda x: tf.fill([count_of(x)], 1.0),
    lambda x: filled(count_of(x)),
    lambda x: filled(tf.cast(x[0], tf.int32)),
    lambda x: tf.fill([tf.random.uniform([], 0, 5, tf.int32)], 1.0),
    lambda x: tf.fill([tf.argmax(x)], 1.0),
    changed_by_a_loop,
    from_a_variable,
  ],
)
def test_sizes_that_follow_from_values_are_not(function):
  assert not fixed(function, ANY)


def test_an_argument_is_followed_to_where_its_value_is_made():
  (fill,) = [node for node in walk(graph_of(lambda: filled(tf.constant(3)))) if node.op.type == "Fill"]
  pack = fill.op.inputs[0].op
  tensor, scope = resolved(pack.inputs[0], fill.scope)
  assert tf.get_static_value(tensor) == 3
  assert scope.call is None
