import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling import optimization

from official_trainer.optim.ema import Ema, NoEma
from official_trainer.optim.foreign import without_averaging
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def averaging(**settings):
  base = tf_keras.optimizers.legacy.SGD(0.1)
  return base, optimization.ExponentialMovingAverage(base, **settings)


def test_other_optimizers_are_left_alone():
  optimizer = tf_keras.optimizers.SGD(0.1)
  assert without_averaging(optimizer) == (optimizer, None)
  assert without_averaging(None) == (None, None)


def test_the_averaging_wrapper_comes_off_with_its_settings():
  base, wrapped = averaging(average_decay=0.75, start_step=3, dynamic_decay=False, trainable_weights_only=True)
  optimizer, settings = without_averaging(wrapped)
  assert optimizer is base
  assert settings == (0.75, 3, False, True)


@pytest.mark.parametrize("scale", [{}, {"dynamic": False, "initial_scale": 32.0}, {"initial_scale": 64.0}])
def test_it_comes_off_from_inside_loss_scaling_too(scale):
  # Model Garden builds this for float16 with averaging, and cannot train with it.
  base, wrapped = averaging(average_decay=0.75)
  optimizer, settings = without_averaging(tf_keras.mixed_precision.LossScaleOptimizer(wrapped, **scale))
  assert settings.average_decay == 0.75
  assert isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
  assert optimizer.inner_optimizer is base
  assert optimizer.dynamic == scale.get("dynamic", True)
  assert float(optimizer.loss_scale) == scale.get("initial_scale", 2.0**15)


def test_loss_scaling_without_averaging_is_left_alone():
  optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.1))
  assert without_averaging(optimizer) == (optimizer, None)


@pytest.mark.parametrize("loss_scaling", [False, True])
def test_a_trainer_averages_in_place_of_the_wrapper(loss_scaling):
  _, optimizer = averaging(average_decay=0.5, dynamic_decay=False)
  if loss_scaling:
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
  trainer = small_tasks.build_trainer(optimizer=optimizer)
  assert isinstance(trainer.state.ema, Ema)
  expected = [v.numpy() for v in trainer.model.variables]
  for _ in range(3):
    small_tasks.train(trainer, 1)
    expected = [a - np.float32(0.5) * (a - w.numpy()) for a, w in zip(expected, trainer.model.variables, strict=True)]
  np.testing.assert_equal([v.numpy() for v in trainer.state.ema.averages], expected)
  assert np.isfinite(small_tasks.evaluate(trainer)["validation_loss"])


def test_without_averaging_anywhere_there_is_none():
  trainer = small_tasks.build_trainer(optimizer=tf_keras.optimizers.legacy.SGD(0.1))
  assert isinstance(trainer.state.ema, NoEma)
  assert tf.executing_eagerly()
