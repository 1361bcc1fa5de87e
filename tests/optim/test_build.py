import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.build import applied_learning_rate, build_optimizer
from official_trainer.optim.config import OptimizationConfig
from official_trainer.optim.updates import NoUpdates
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

AVAILABLE = [
  "sgd", "sgd_experimental", "adam", "adam_experimental", "adamw", "adamw_experimental", "lamb", "rmsprop", "lars",
  "adagrad", "adafactor_keras",
]  # fmt: skip
ALWAYS_LEGACY = ("adamw", "lamb", "lars")


def variables_of(optimizer):
  found = optimizer.variables
  return list(found() if callable(found) else found)


def is_legacy(optimizer):
  return isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kind", AVAILABLE)
def test_d30_every_optimizer_trains_with_slots_that_were_made_before_the_first_step(kind, legacy):
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization(kind, 0.01, legacy=legacy))
  trainer = small_tasks.build_trainer(config)
  if kind.endswith(("_experimental", "_keras")):
    assert not is_legacy(trainer.optimizer)
  else:
    assert is_legacy(trainer.optimizer) == (legacy or kind in ALWAYS_LEGACY)
  slots = [variable.shape.as_list() for variable in variables_of(trainer.optimizer)]
  before = trainer.model.get_weights()
  small_tasks.train(trainer, 2)
  assert [variable.shape.as_list() for variable in variables_of(trainer.optimizer)] == slots
  assert trainer.optimizer.iterations.numpy() == 2
  assert any((new != old).any() for new, old in zip(trainer.model.get_weights(), before, strict=True))


@pytest.mark.parametrize("kind", ["slide", "adafactor"])
def test_optimizers_that_were_not_published_are_refused_by_name(kind):
  with pytest.raises(ConfigError, match=f"optimizer.type: '{kind}' cannot be built"):
    build_optimizer(small_tasks.optimization(kind))


def test_t45_what_is_not_chosen_is_asked_for():
  with pytest.raises(ConfigError, match="trainer.optimizer_config.optimizer.type: must be set"):
    build_optimizer(OptimizationConfig())
  config = small_tasks.optimization("sgd")
  with pytest.raises(ConfigError, match="trainer.optimizer_config.learning_rate.type: must be set"):
    build_optimizer(dataclasses.replace(config, learning_rate=OptimizationConfig().learning_rate))


def test_a_decay_that_the_new_optimizer_has_not_is_refused():
  with pytest.raises(ConfigError, match="sgd.decay: exists with `legacy: true` only"):
    build_optimizer(small_tasks.optimization("sgd", decay=0.1))


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
@pytest.mark.parametrize("legacy", [False, True])
def test_float16_means_loss_scaling(dtype, legacy):
  config = small_tasks.optimization("adam", legacy=legacy)
  dynamic = build_optimizer(config, RuntimeConfig(mixed_precision_dtype=dtype))
  assert isinstance(dynamic, tf_keras.mixed_precision.LossScaleOptimizer) and dynamic.dynamic
  fixed = build_optimizer(config, RuntimeConfig(mixed_precision_dtype=dtype, loss_scale=64.0))
  assert not fixed.dynamic and float(fixed.loss_scale) == 64.0


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_other_precisions_have_none(dtype):
  optimizer = build_optimizer(small_tasks.optimization("adam"), RuntimeConfig(mixed_precision_dtype=dtype))
  assert not isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)


def test_a_model_without_trainable_weights_needs_no_slots():
  model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.ReLU()])
  NoUpdates(build_optimizer(small_tasks.optimization("adam")), model.trainable_variables).build_slots()


class UnitGradient(small_tasks.Regression):
  """Loss = weight, so that the gradient is 1 and plain gradient descent moves the weight by the learning rate."""

  def __init__(self, params):
    ones = np.ones([8, small_tasks.FEATURES], np.float32), np.zeros([8, 1], np.float32)
    dense = lambda: [tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]  # noqa: E731
    super().__init__(params, train=ones, validation=ones, layers=dense)

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.cast(model_outputs, tf.float32)[:, 0]


def schedule(kind):
  config = small_tasks.optimization("sgd", 0.25)
  if kind == "value":
    return config
  cosine = dataclasses.replace(config.learning_rate.cosine, initial_learning_rate=0.25, decay_steps=6)
  config = dataclasses.replace(
    config, learning_rate=dataclasses.replace(config.learning_rate, type="cosine", cosine=cosine)
  )
  if kind == "warm-up":
    linear = dataclasses.replace(config.warmup.linear, warmup_steps=3)
    config = dataclasses.replace(config, warmup=dataclasses.replace(config.warmup, type="linear", linear=linear))
  return config


@pytest.mark.parametrize("kind", ["value", "cosine", "warm-up"])
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_m23_the_learning_rate_that_is_logged_is_the_one_that_was_applied(kind, legacy, scaled):
  # Loss scaling alone: the computation stays in float32.
  scaling = {"mixed_precision_dtype": "float16", "loss_scale": 8.0} if scaled else {}
  runtime = RuntimeConfig(seed=1, **scaling)
  config = small_tasks.experiment(optimizer_config=dataclasses.replace(schedule(kind), legacy=legacy), runtime=runtime)
  trainer = small_tasks.build_trainer(config, task=UnitGradient)
  (weight,) = trainer.model.trainable_variables
  logged = []
  for _ in range(5):
    before = weight.numpy()
    logged.append(small_tasks.train(trainer, 1)["learning_rate"])
    np.testing.assert_allclose(before - weight.numpy(), logged[-1], rtol=1e-5, atol=1e-7)
  if kind == "value":
    assert logged == [0.25] * 5
  else:
    assert len(set(logged)) > 3


def test_the_decay_of_the_legacy_optimizer_is_part_of_the_logged_rate():
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization("sgd", 0.25, legacy=True, decay=0.5))
  trainer = small_tasks.build_trainer(config, task=UnitGradient)
  (weight,) = trainer.model.trainable_variables
  for step in range(4):
    before = weight.numpy()
    rate = small_tasks.train(trainer, 1)["learning_rate"]
    np.testing.assert_allclose(before - weight.numpy(), rate, rtol=1e-5)
    np.testing.assert_allclose(rate, 0.25 / (1 + 0.5 * step), rtol=1e-6)


def test_before_the_first_update_the_rate_is_that_of_the_first():
  optimizer = build_optimizer(schedule("warm-up"))
  assert float(applied_learning_rate(optimizer, tf.Variable(0, dtype=tf.int64))) == 0.0
