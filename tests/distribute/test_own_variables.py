import tensorflow as tf
import tf_keras

from official_trainer.distribute.own_variables import OwnVariables, own_state, own_variable


def test_a_call_begins_with_what_it_is_given_and_leaves_the_process_s_variable_alone():
  variable = own_variable(initial_value=tf.constant(5, tf.int64), trainable=False)

  @tf.function
  def call(begin):
    variable.bind(begin)
    for _ in tf.range(3):
      variable.assign_add(1)
    return variable.read_value()

  assert [int(call(tf.constant(start, tf.int64))) for start in (10, 20, 10)] == [13, 23, 13]
  assert int(variable.numpy()) == 5


def test_functions_inside_the_call_use_the_same_variable_and_others_the_process_s():
  variable = own_variable(initial_value=tf.constant(0.0), trainable=False)
  inner = tf.function(lambda: variable.assign_add(1.0))

  @tf.function
  def call():
    variable.bind(tf.constant(10.0))
    tf.function(lambda: variable.assign_add(1.0))()
    return variable.read_value()

  assert call().numpy() == 11.0
  inner()
  assert variable.numpy() == 1.0


def test_sums_of_metrics_come_back_and_are_added():
  own = OwnVariables()
  with own.made():
    mean = tf_keras.metrics.Mean()
    matrix = tf_keras.metrics.MeanIoU(num_classes=2)

  @tf.function
  def call(values, begin):
    own.bind(begin)
    mean.update_state(values)
    matrix.update_state([0, 1], [0, 1])
    return own.values()

  for values in ([1.0, 2.0], [6.0, 3.0]):
    own.add(call(tf.constant(values), own.zeros()))
  assert mean.result().numpy() == 3.0
  assert matrix.total_cm.numpy().tolist() == [[2, 0], [0, 2]]
  own.assign(call(tf.constant([3.0, 3.0]), own.values()))
  assert mean.count.numpy() == 6
  mean.reset_state()
  assert mean.count.numpy() == 0


def test_values_travel_as_one_tensor_for_each_dtype():
  own = OwnVariables()
  with own.made():
    for initial in (tf.zeros([2, 3]), tf.ones([]), tf.zeros([4], tf.int64)):
      tf.Variable(initial)
  assert [(tensor.dtype, tensor.shape.as_list()) for tensor in own.values()] == [(tf.float32, [7]), (tf.int64, [4])]


def test_a_generator_draws_by_the_state_of_the_call():
  generator = tf.random.Generator.from_seed(1)
  (state,) = own_state([generator])

  @tf.function
  def draw(step):
    state.bind(tf.zeros(state.shape, tf.int64))
    state.assign(tf.stack([tf.constant(0, tf.int64), step, tf.constant(7, tf.int64)]))
    return generator.uniform([3]), generator.uniform([3])

  one, again, other = (draw(tf.constant(step, tf.int64)) for step in (1, 1, 2))
  assert one[0].numpy().tolist() == again[0].numpy().tolist() != other[0].numpy().tolist()
  assert one[0].numpy().tolist() != one[1].numpy().tolist()


def test_a_checkpoint_holds_the_process_s_value(tmp_path):
  variable = own_variable(initial_value=tf.constant(3, tf.int64), trainable=False, name="step")
  path = tf.train.Checkpoint(step=variable).write(str(tmp_path / "ckpt"))
  variable.assign(0)
  tf.train.Checkpoint(step=variable).read(path).assert_consumed()
  assert variable.numpy() == 3
