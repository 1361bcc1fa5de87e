import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.optim.config import EmaConfig
from official_trainer.optim.ema import Ema, NoEma
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def averaged(values, **settings):
  """Returns (variable, Ema of it)."""
  weight = tf.Variable(np.asarray(values, np.float32))
  return weight, Ema([weight], **{"average_decay": 0.9, **settings})


def test_m13_the_average_starts_as_a_copy():
  weight, ema = averaged([1.0, -2.0, np.inf])
  np.testing.assert_array_equal(ema.averages[0], weight)
  weight.assign([5.0, 6.0, 7.0])
  ema.reset()
  np.testing.assert_array_equal(ema.averages[0], weight)


@pytest.mark.parametrize("dynamic_decay", [False, True])
@pytest.mark.parametrize("start_step", [0, 3])
def test_the_average_is_that_of_the_formula(dynamic_decay, start_step):
  generator = np.random.default_rng(0)
  weight, ema = averaged(generator.normal(size=5), start_step=start_step, dynamic_decay=dynamic_decay)
  update = tf.function(ema.update)
  expected = weight.numpy()
  for step in range(1, 40):
    value = generator.normal(size=5).astype(np.float32)
    weight.assign(value)
    update(tf.constant(step, tf.int64))
    updates = np.float32(step - start_step)
    decay = np.float32(0.9)
    if dynamic_decay:
      decay = min(decay, (np.float32(1) + updates) / (np.float32(10) + updates))
    if step < start_step:
      expected = value
    else:
      expected = expected - (np.float32(1) - decay) * (expected - value)
    np.testing.assert_array_equal(ema.averages[0], expected)


def test_before_the_start_step_the_average_is_the_weight_to_the_bit_whatever_the_magnitudes():
  weight, ema = averaged([1e8, 1e-8, 1.0, -1e8], start_step=10)
  for step, value in enumerate([[1e-8, 1e8, 3.14159, 1.0], [1.1, -1e-8, 2e7, 1e-30]], start=1):
    weight.assign(value)
    ema.update(tf.constant(step, tf.int64))
    np.testing.assert_array_equal(ema.averages[0], weight)


def test_before_the_start_step_the_raw_weights_are_evaluated():
  weight, ema = averaged([1.0], start_step=10)
  ema.averages[0].assign([9.0])
  with ema.swapped_in(9):
    assert weight.numpy() == [1.0]
  with ema.swapped_in(10):
    assert weight.numpy() == [9.0]
  assert weight.numpy() == [1.0]


def test_integer_variables_are_not_averaged():
  counter = tf.Variable(1, dtype=tf.int64)
  assert Ema([counter], average_decay=0.5).averages == []


def test_half_precision_variables_are_averaged_in_their_type():
  weight = tf.Variable([1.0, 2.0], dtype=tf.bfloat16)
  ema = Ema([weight], average_decay=0.5, dynamic_decay=False)
  weight.assign([3.0, 4.0])
  ema.update(tf.constant(1, tf.int64))
  assert ema.averages[0].dtype == tf.bfloat16
  np.testing.assert_array_equal(tf.cast(ema.averages[0], tf.float32), [2.0, 3.0])


class Boom(Exception):
  pass


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_whatever_the_body_raises_the_raw_weights_come_back(error):
  weight, ema = averaged([1.0, np.nan])
  ema.averages[0].assign([2.0, 3.0])
  with pytest.raises(error), ema.swapped_in(1):
    assert weight.numpy()[0] == 2.0
    raise error
  np.testing.assert_array_equal(weight, [1.0, np.nan])
  np.testing.assert_array_equal(ema.averages[0], [2.0, 3.0])
  assert not ema.is_swapped


def test_an_interrupt_that_arrives_as_the_swap_returns_is_undone(monkeypatch):
  weight, ema = averaged([1.0])
  ema.averages[0].assign([2.0])
  swap, calls = ema._swap, []

  def interrupted():
    swap()
    calls.append(1)
    if len(calls) == 1:
      raise KeyboardInterrupt

  monkeypatch.setattr(ema, "_swap", interrupted)
  with pytest.raises(KeyboardInterrupt), ema.swapped_in(1):
    pytest.fail("the body must not run")
  assert weight.numpy() == [1.0]
  assert ema.averages[0].numpy() == [2.0]


def test_swapping_in_twice_swaps_once():
  weight, ema = averaged([1.0])
  ema.averages[0].assign([2.0])
  with ema.swapped_in(1), ema.swapped_in(1):
    assert weight.numpy() == [2.0]
  assert weight.numpy() == [1.0]


def test_swapped_out_shows_the_raw_weights_for_a_while():
  weight, ema = averaged([1.0])
  ema.averages[0].assign([2.0])
  with ema.swapped_in(1):
    with ema.swapped_out():
      assert (weight.numpy(), ema.averages[0].numpy()) == ([1.0], [2.0])
    with contextlib.suppress(Boom), ema.swapped_out():
      raise Boom
    assert weight.numpy() == [2.0]
  with ema.swapped_out():
    assert weight.numpy() == [1.0]


def test_the_null_object_does_nothing():
  none = NoEma()
  none.reset()
  none.update(tf.constant(1))
  with none.swapped_in(1), none.swapped_out():
    assert none.averages == ()


def ema_config(**settings):
  return small_tasks.experiment(optimizer_config=small_tasks.optimization("adam", ema=EmaConfig(**settings)))


@pytest.mark.parametrize("trainable_only", [False, True])
def test_batch_statistics_are_averaged_unless_only_trainable_weights_are_asked_for(trainable_only):
  config = ema_config(trainable_weights_only=trainable_only)
  trainer = small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, layers=small_tasks.everything)
  )
  model = trainer.model
  wanted = model.trainable_variables if trainable_only else model.variables
  assert len(trainer.state.ema.averages) == len(wanted)
  small_tasks.train(trainer, 3)
  raw = [v.numpy() for v in model.variables]
  with trainer.state.ema.swapped_in(3):
    swapped_in = [v.numpy() for v in wanted]
  np.testing.assert_equal(swapped_in, [v.numpy() for v in trainer.state.ema.averages])
  np.testing.assert_equal([v.numpy() for v in model.variables], raw)


@pytest.fixture
def precision():
  yield tf_keras.mixed_precision.set_global_policy
  tf_keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("legacy", [False, True])
def test_the_trainer_averages_with_either_kind_of_optimizer(legacy):
  config = small_tasks.experiment(
    optimizer_config=small_tasks.optimization("adam", legacy=legacy, ema=EmaConfig(average_decay=0.8))
  )
  trainer = small_tasks.build_trainer(config)
  expected = [v.numpy() for v in trainer.model.variables]
  for step in range(1, 6):
    small_tasks.train(trainer, 1)
    rate = np.float32(1) - min(np.float32(0.8), np.float32(1 + step) / np.float32(10 + step))
    expected = [a - rate * (a - w.numpy()) for a, w in zip(expected, trainer.model.variables, strict=True)]
  np.testing.assert_equal([v.numpy() for v in trainer.state.ema.averages], expected)


@pytest.mark.parametrize("loss_scale", [None, 128.0])
@pytest.mark.parametrize("policy, dtype", [("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")])
def test_m36_averaging_works_under_mixed_precision_and_loss_scaling(precision, policy, dtype, loss_scale):
  from official_trainer.distribute.config import RuntimeConfig

  precision(policy)
  config = small_tasks.experiment(
    optimizer_config=small_tasks.optimization("adam", ema=EmaConfig()),
    runtime=RuntimeConfig(seed=3, mixed_precision_dtype=dtype, loss_scale=loss_scale),
  )
  trainer = small_tasks.build_trainer(config, num_replicas=2)
  before = [v.numpy() for v in trainer.state.ema.averages]
  logs = small_tasks.train(trainer, 4)
  assert np.isfinite(logs["training_loss"])
  scaled = isinstance(trainer.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
  assert scaled == (dtype == "float16")
  if scaled and loss_scale:
    assert float(trainer.optimizer.loss_scale) == loss_scale
  for average, was, weight in zip(trainer.state.ema.averages, before, trainer.model.variables, strict=True):
    assert average.dtype == tf.float32
    assert np.isfinite(average.numpy()).all()
    assert (average.numpy() != was).any() and (average.numpy() != weight.numpy()).any()
  assert np.isfinite(small_tasks.evaluate(trainer)["validation_loss"])
