import pytest
import tensorflow as tf

from official_trainer.inspect.memory import live_bytes, variable_bytes

KB = 256
"""Numbers of float32 in 1 kB."""


def graph_of(function, *sizes, **kwargs):
  specs = [tf.TensorSpec((size,)) for size in sizes]
  return tf.function(function, **kwargs).get_concrete_function(*specs).graph


def test_tensors_count_from_where_they_are_made_to_where_they_are_read_last():
  def chain(x):
    for _ in range(5):
      x = tf.sin(x)
    return x

  assert live_bytes(graph_of(chain, KB)) == 3 * 1024  # The batch, what is read, and what is made.


def test_what_a_gradient_needs_stays_alive():
  def step(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = x
      for _ in range(5):
        y = tf.sin(y)
    return tape.gradient(y, x)

  # The last sine is not computed; the four before it, the first gradient and a cosine are there at once.
  assert 6 * 1024 <= live_bytes(graph_of(step, KB)) <= 8 * 1024


def test_views_and_reads_of_variables_take_no_memory():
  variable = tf.Variable(tf.zeros((KB,)))

  def step(x):
    return tf.reshape(tf.identity(x), (KB // 2, 2)) + tf.reshape(variable, (KB // 2, 2))

  assert live_bytes(graph_of(step, KB)) == 2 * 1024


def test_a_view_keeps_what_it_shows_alive():
  def step(x):
    made = tf.sin(x)
    view = tf.reshape(made, (2, KB // 2))
    other = tf.cos(tf.cos(x))
    return tf.reshape(view, (KB,)) + other

  def without(x):
    made = tf.sin(x)
    other = tf.cos(tf.cos(x))
    return made + other

  assert live_bytes(graph_of(step, KB)) == live_bytes(graph_of(without, KB)) == 4 * 1024


@pytest.mark.parametrize("jit_compile", [None, True])
def test_what_a_function_makes_while_it_runs_counts_where_it_is_called(jit_compile):
  @tf.function(jit_compile=jit_compile)
  def inner(x):
    return tf.reduce_sum(tf.sin(x) + tf.cos(x))

  # The batch; inside the sine, the cosine and their sum.
  assert live_bytes(graph_of(lambda x: inner(x) + 1.0, KB)) == 4 * 1024


def test_operations_of_another_device_take_no_memory_of_this_one(logical_cpus):
  def step(x):
    with tf.device("CPU:1"):
      y = tf.concat([x] * 10, 0)
    with tf.device("CPU:0"):
      return tf.reduce_sum(y)

  graph = graph_of(step, KB)
  device = tf.config.list_logical_devices("CPU")[0].name
  placed = {op.device for op in graph.get_operations() if op.type == "ConcatV2"}
  assert placed and device not in placed
  assert live_bytes(graph) > 10 * 1024
  assert live_bytes(graph, "/job:localhost/replica:0/task:0" + device) < 2 * 1024


def test_a_variable_counts_with_the_bytes_of_its_type():
  variables = [tf.Variable(tf.zeros((3, 4))), tf.Variable(tf.zeros((2,), tf.float64)), tf.Variable("text")]
  assert variable_bytes(variables) == 3 * 4 * 4 + 2 * 8
