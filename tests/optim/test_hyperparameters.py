import pytest
import tensorflow as tf
import tf_keras

from official_trainer.optim.hyperparameters import Hyperparameters
from official_trainer.optim.updates import NoUpdates

SCHEDULE = tf_keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5])


def built(optimizer):
  model = tf_keras.Sequential([tf_keras.layers.Input((1,)), tf_keras.layers.Dense(1, use_bias=False)])
  model.layers[0].kernel.assign([[0.0]])
  NoUpdates(optimizer, model.trainable_variables).build_slots()
  return model.layers[0].kernel


@pytest.mark.parametrize("make", [tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD])
@pytest.mark.parametrize(("rate", "moves"), [(0.5, [0.5, 0.25, 0.5]), (SCHEDULE, [1.0, 0.25, 0.5])])
def test_the_factor_is_applied_to_values_and_schedules_without_a_new_trace(make, rate, moves):
  optimizer = make(rate)
  kernel = built(optimizer)
  numbers = Hyperparameters(optimizer, scales=True)
  traces = []

  @tf.function
  def step():
    traces.append(1)
    optimizer.apply_gradients([(tf.constant([[-1.0]]), kernel)])

  for factor, expected in zip((1.0, 0.5, 1.0), moves, strict=True):
    numbers.scale(factor)
    before = float(kernel[0, 0])
    step()
    assert float(kernel[0, 0]) - before == expected
  assert len(traces) == 1


def test_the_factor_is_not_part_of_the_checkpoint(tmp_path):
  optimizer = tf_keras.optimizers.SGD(SCHEDULE)
  built(optimizer)
  plain = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "plain"))
  Hyperparameters(optimizer, scales=True).scale(0.5)
  scaled = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "scaled"))
  assert tf.train.list_variables(scaled) == tf.train.list_variables(plain)


@pytest.mark.parametrize("make", [tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD])
def test_a_restore_brings_back_the_saved_numbers_until_the_configured_ones_are_applied(tmp_path, make):
  before, after = make(0.5, momentum=0.75), make(0.25, momentum=0.5)
  for optimizer in (before, after):
    built(optimizer)
  numbers = Hyperparameters(after, scales=False)
  prefix = tf.train.Checkpoint(optimizer=before).write(str(tmp_path / "ckpt"))
  tf.train.Checkpoint(optimizer=after).read(prefix)
  assert float(after.learning_rate) == 0.5
  numbers.apply()
  assert float(after.learning_rate) == 0.25
  assert float(after.momentum) == 0.5


def test_a_schedule_is_left_alone_where_nothing_scales_it():
  optimizer = tf_keras.optimizers.SGD(SCHEDULE)
  built(optimizer)
  Hyperparameters(optimizer, scales=False).apply()
  assert optimizer._learning_rate is SCHEDULE
