import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.optim.build import build_optimizer
from official_trainer.optim.config import (
  ParamGroupConfig,
)
from official_trainer.optim.param_groups import Membership
from official_trainer.optim.updates import Updates
from tests import small_tasks
from tests.optim import reference_optimizers as reference

pytestmark = pytest.mark.usefixtures("logical_cpus")

RATE = 0.01
NUM_UPDATES = 20

# Name -> (kind in the config, its settings, rule in NumPy).
OPTIMIZERS = {
  "sgd": ("sgd", {}, reference.sgd),
  "momentum": ("sgd", {"momentum": 0.9}, reference.momentum),
  "adam": ("adam", {}, reference.adam),
  "adamw": ("adamw_experimental", {"weight_decay": 0.05, "global_clipnorm": None}, reference.adamw),
  "adamw_legacy": ("adamw", {"weight_decay_rate": 0.05, "gradient_clip_norm": 0.0}, reference.adamw),
  "rmsprop": ("rmsprop", {}, reference.rmsprop),
  "lamb": ("lamb", {"weight_decay_rate": 0.05}, reference.lamb),
  "lars": ("lars", {"weight_decay_rate": 0.05}, reference.lars),
  "adafactor": ("adafactor_keras", {}, reference.adafactor),
}


def optimizer_config(name, **settings):
  kind, own, _ = OPTIMIZERS[name]
  return dataclasses.replace(small_tasks.optimization(kind, RATE, **own), **settings)


def values(seed, shape=(3, 4)):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def updated(name, member, num=NUM_UPDATES):
  """Returns the weights of a lone variable after updates with fixed gradients."""
  optimizer = build_optimizer(optimizer_config(name))
  variable = tf.Variable(values(0), name="kernel")
  updates = Updates(optimizer, [(variable, member)])
  updates.build_slots()
  step = tf.function(lambda gradient: optimizer.apply_gradients([(gradient, variable)]))
  for index in range(num):
    step(tf.constant(values(index + 1)))
  return variable.numpy()


def computed(name, multiplier, **settings):
  """Returns what NumPy makes of the same, each update multiplied after the rule."""
  rule = OPTIMIZERS[name][2]
  w, state = values(0).astype(np.float64), {}
  for index in range(NUM_UPDATES):
    new = rule(w, values(index + 1).astype(np.float64), state, index + 1, rate=RATE, **settings)
    w = w + multiplier * (new - w)
  return w


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_multiplied_update_is_that_of_the_reference(name):
  np.testing.assert_allclose(updated(name, Membership(lr_multiplier=0.1)), computed(name, 0.1), atol=1e-6, rtol=0)
  assert np.abs(computed(name, 0.1) - computed(name, 1.0)).max() > 1e-4  # The comparison can fail.


@pytest.mark.parametrize("name", ["adamw", "adamw_legacy", "lamb", "lars"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_a_group_has_a_decay_of_its_own_in_place_of_the_optimizers(name, decay):
  expected = computed(name, 1.0, weight_decay=decay)
  np.testing.assert_allclose(updated(name, Membership(weight_decay=decay)), expected, atol=1e-6, rtol=0)
  if name != "lars":  # Its trust ratio hides the decay in the direction.
    assert np.abs(expected - computed(name, 1.0)).max() > 1e-4


@pytest.mark.parametrize("legacy", [False, True])
def test_an_optimizer_without_decay_gets_one_that_is_decoupled(legacy):
  optimizer = build_optimizer(small_tasks.optimization("sgd", 0.1, legacy=legacy))
  variable = tf.Variable([2.0])
  Updates(optimizer, [(variable, Membership(weight_decay=0.5))]).build_slots()
  optimizer.apply_gradients([(tf.constant([1.0]), variable)])
  np.testing.assert_allclose(variable.numpy(), [2.0 - 0.1 * 0.5 * 2.0 - 0.1 * 1.0], rtol=1e-6)


def train_bits(name, num_replicas, **optimization):
  config = small_tasks.experiment(optimizer_config=optimizer_config(name, **optimization))
  trainer = small_tasks.build_trainer(config, num_replicas=num_replicas)
  small_tasks.train(trainer, 4)
  return small_tasks.bits(trainer)


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_multiplier_of_one_is_no_group_bit_for_bit(name, num_replicas):
  plain = train_bits(name, num_replicas)
  assert train_bits(name, num_replicas, param_groups=(ParamGroupConfig(pattern="."),)) == plain
