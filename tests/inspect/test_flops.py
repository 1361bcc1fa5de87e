import pytest
import tensorflow as tf
import tf_keras

from official_trainer.inspect.flops import count_flops


def counted(function, *shapes, **kwargs):
  specs = [tf.TensorSpec(shape) for shape in shapes]
  return count_flops(tf.function(function, **kwargs).get_concrete_function(*specs).graph)


def gradients(function):
  def run(x, y):
    with tf.GradientTape() as tape:
      tape.watch([x, y])
      result = function(x, y)
    return result, tape.gradient(result, [x, y])

  return run


def test_a_product_of_matrices_takes_two_for_each_term():
  assert counted(tf.matmul, (8, 16), (16, 4)) == 2 * 8 * 16 * 4


def test_functions_that_are_called_count_each_time():
  @tf.function(jit_compile=True)
  def inner(x, y):
    return tf.matmul(x, y)

  assert counted(lambda x, y: inner(x, y) + inner(x, y + 1.0), (8, 16), (16, 4)) == 2 * 2 * 8 * 16 * 4 + 64 + 32


@pytest.mark.parametrize("most", [None, 5])
def test_a_loop_with_a_fixed_number_of_rounds_counts_all_of_them(most):
  def loop(x, y):
    limit = 5 if most is None else 1000

    def body(index, total):
      return index + 1, total + tf.matmul(x, y)

    return tf.while_loop(
      lambda index, total: index < limit, body, (tf.constant(0), tf.zeros((8, 4))), maximum_iterations=most
    )

  rounds = counted(loop, (8, 16), (16, 4)) / (2 * 8 * 16 * 4 + 8 * 4)
  assert 5 <= rounds < 5.1  # And what counts the rounds.


def test_a_recurrent_layer_counts_every_step():
  layer = tf_keras.layers.LSTM(6)
  layer(tf.zeros((2, 7, 4)))
  products = 7 * 2 * 2 * (4 + 6) * (4 * 6)
  assert products <= counted(lambda x: layer(x), (2, 7, 4)) <= 1.5 * products


def test_a_loop_counts_one_round_where_it_is_not_plain_how_many_there_are():
  def loop(x, y):
    total = tf.zeros((8, 4))
    for _ in tf.range(tf.cast(x[0, 0], tf.int32)):
      total += tf.matmul(x, y)
    return total

  rounds = counted(loop, (8, 16), (16, 4)) - 2 * 8 * 16 * 4
  assert 32 <= rounds <= 32 + 8  # The sum, and what counts the rounds.


@pytest.mark.parametrize(
  ("equation", "shapes", "combinations"),
  [
    ("abc,cd->abd", ((2, 3, 4), (4, 5)), 2 * 3 * 4 * 5),
    ("aecd,abcd->acbe", ((2, 6, 4, 5), (2, 3, 4, 5)), 2 * 6 * 4 * 5 * 3),
    ("...a,ab->...b", ((2, 3, 4), (4, 5)), 2 * 3 * 4 * 5),
    ("...ab,...bc->...ac", ((7, 2, 3), (1, 3, 4)), 7 * 2 * 3 * 4),
  ],
)
def test_an_einsum_takes_two_for_each_combination_of_its_indices(equation, shapes, combinations):
  graph = tf.function(lambda x, y: tf.raw_ops.Einsum(inputs=[x, y], equation=equation))
  specs = [tf.TensorSpec(shape) for shape in shapes]
  assert count_flops(graph.get_concrete_function(*specs).graph) == 2 * combinations


# The count was twice as large once a module of Model Garden had been imported, which teaches the profiler the same.
def test_an_operation_that_the_profiler_knows_as_well_counts_once():
  import official.core.train_utils  # noqa: F401

  test_an_einsum_takes_two_for_each_combination_of_its_indices("abc,cd->abd", ((2, 3, 4), (4, 5)), 2 * 3 * 4 * 5)


CONVOLUTIONS = [
  (lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), (2, 8, 8, 3), (3, 3, 3, 4), 2 * (2 * 4 * 4 * 4) * (3 * 3 * 3)),
  (lambda x, w: tf.nn.depthwise_conv2d(x, w, (1, 1, 1, 1), "VALID"), (2, 8, 8, 3), (3, 3, 3, 2),
   2 * (2 * 6 * 6 * 6) * (3 * 3)),
  (lambda x, w: tf.nn.conv3d(x, w, (1, 1, 1, 1, 1), "VALID"), (1, 4, 4, 4, 2), (2, 2, 2, 2, 3),
   2 * (3 * 3 * 3 * 3) * (2 * 2 * 2 * 2)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs", "filters", "flops"), CONVOLUTIONS)
def test_a_convolution_and_each_of_its_gradients_take_the_same(function, inputs, filters, flops):
  assert counted(function, inputs, filters) == flops
  assert counted(gradients(function), inputs, filters) == 3 * flops


def test_what_has_no_fixed_shape_counts_nothing():
  assert counted(tf.matmul, (None, 16), (16, 4)) == 0


def test_the_count_says_nothing_of_its_own(capfd):
  counted(tf.matmul, (8, 16), (16, 4))
  assert capfd.readouterr() == ("", "")
