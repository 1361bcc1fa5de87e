import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.build import build_optimizer
from official_trainer.optim.config import (
  EmaConfig,
  GradientTransformConfig,
  OptimizerConfig,
  ParamGroupConfig,
  SgdConfig,
)
from official_trainer.optim.param_groups import Membership
from official_trainer.optim.updates import Updates
from tests import small_tasks
from tests.optim import grouped
from tests.optim import reference_optimizers as reference
from tests.optim.test_build import AVAILABLE

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


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kind", AVAILABLE)
def test_every_optimizer_of_the_factory_multiplies_decays_and_freezes(kind, legacy):
  def change(member):
    optimizer = build_optimizer(small_tasks.optimization(kind, RATE, legacy=legacy))
    variables = [tf.Variable(values(0)), tf.Variable(values(0))]
    updates = Updates(optimizer, [(variables[0], member), (variables[1], Membership(frozen=True))])
    updates.build_slots()
    optimizer.apply_gradients([(tf.constant(values(1)), variable) for variable in variables])
    assert variables[1].numpy().tobytes() == values(0).tobytes()
    return variables[0].numpy() - values(0)

  decayed = change(Membership(weight_decay=0.5))
  assert np.abs(decayed - change(Membership())).max() > 1e-7
  np.testing.assert_allclose(change(Membership(weight_decay=0.5, lr_multiplier=0.25)), 0.25 * decayed, atol=1e-6)


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


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_multiplier_of_one_is_no_group_bit_for_bit(name, num_replicas):
  plain = train_bits(name, num_replicas)
  assert train_bits(name, num_replicas, param_groups=(ParamGroupConfig(pattern="."),)) == plain


def rule(pattern, **settings):
  return ParamGroupConfig(pattern=pattern, **settings)


@pytest.mark.parametrize("name", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "lamb"))])
def test_a_multiplier_means_the_same_on_one_replica_and_on_two(name):
  def trained(num_replicas):
    groups = (rule("stem", lr_multiplier=0.1), rule("head", weight_decay=0.3))
    trainer = grouped.build(name, num_replicas=num_replicas, param_groups=groups, layers=grouped.plain)
    small_tasks.train(trainer, 6)
    return grouped.weights(trainer)

  one, two = trained(1), trained(2)
  for path, value in one.items():
    np.testing.assert_allclose(two[path], value, atol=1e-6, err_msg=path)


@pytest.mark.parametrize(("kind", "num_replicas"), [("adam", 2), ("adamw", 1), ("adafactor_keras", 1)])
def test_d18_frozen_variables_keep_their_bits_and_have_no_slots(kind, num_replicas):
  trainer = grouped.build(kind, num_replicas=num_replicas, param_groups=(rule("stem|block/bias", frozen=True),))
  before, slots = grouped.weights(trainer), grouped.slot_shapes(trainer)
  small_tasks.train(trainer, 4)
  after = grouped.weights(trainer)
  still = {path for path in before if before[path].tobytes() == after[path].tobytes()}
  assert still == {"stem/kernel", "stem/bias", "block/bias"}
  assert len(slots) < len(grouped.slot_shapes(grouped.build(kind, num_replicas=num_replicas)))
  assert [3, 4] not in slots  # The shape of stem/kernel alone.


def test_the_gradient_of_a_frozen_variable_is_not_computed():
  # The gradient of the first kernel is a product of its own, and so is that of what is before the layer after it.
  frozen = grouped.build("sgd", param_groups=(rule("stem", frozen=True),))
  assert num_products(frozen) < num_products(grouped.build("sgd"))


def num_products(trainer):
  return grouped.needed_op_types(trainer).count("MatMul")


def test_nothing_left_to_train_is_refused():
  with pytest.raises(ConfigError, match="param_groups: leaves nothing to train: every variable is frozen"):
    grouped.build(param_groups=(rule(".", frozen=True),))


def test_m14_a_group_may_have_an_optimizer_of_its_own():
  own = OptimizerConfig(type="sgd", sgd=SgdConfig(momentum=0.5))
  trainer = grouped.build("adam", param_groups=(rule("head", optimizer=own),))
  other = grouped.build("sgd", optimizer=own)
  assert set(trainer.state.own_optimizers) == {"head"}
  before = grouped.weights(trainer)
  small_tasks.train(trainer, 1)
  small_tasks.train(other, 1)
  assert grouped.weights(trainer)["head/kernel"].tobytes() == grouped.weights(other)["head/kernel"].tobytes()
  assert (grouped.weights(trainer)["stem/kernel"] != before["stem/kernel"]).any()
  assert [int(o.iterations) for o in (trainer.optimizer, trainer.state.own_optimizers["head"])] == [1, 1]
  assert int(trainer.global_step) == 1


def test_slots_of_a_groups_own_optimizer_are_restored_to_the_bit(tmp_path):
  own = OptimizerConfig(type="sgd", sgd=SgdConfig(momentum=0.5))

  def build():
    return grouped.build("adam", param_groups=(rule("head", optimizer=own),))

  whole, first = build(), build()
  small_tasks.train(whole, 4)
  small_tasks.train(first, 2)
  path = first.checkpoint.write(str(tmp_path / "ckpt"))
  second = build()
  second.checkpoint.read(path).assert_consumed()
  small_tasks.train(second, 2)
  assert small_tasks.bits(second) == small_tasks.bits(whole)


def test_tensorflow_understands_every_function_of_the_step(caplog):
  groups = (rule("stem", lr_multiplier=0.5, weight_decay=0.1), rule("head", frozen=True))
  clip = GradientTransformConfig(type="clip_by_global_norm")
  for parts in (1, 2):
    trainer = grouped.build(
      "sgd", param_groups=groups, gradient_transforms=(clip,), log_norms="groups", gradient_accumulation_steps=parts
    )
    small_tasks.train(trainer, 1)
  assert "AutoGraph could not transform" not in caplog.text


def test_m23_the_report_says_the_learning_rate_of_each_group():
  trainer = grouped.build("sgd", rate=0.1, param_groups=(rule("stem", lr_multiplier=0.5), rule("head", name="top")))
  logs = small_tasks.train(trainer, 2)
  rates = {name: value for name, value in logs.items() if name.startswith("learning_rate")}
  assert rates == pytest.approx({"learning_rate": 0.1, "learning_rate/stem": 0.05, "learning_rate/top": 0.1})


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_groups_work_with_averages_and_loss_scaling(num_replicas):
  trainer = grouped.build(
    "adam",
    num_replicas=num_replicas,
    param_groups=(rule("stem", frozen=True), rule("block", lr_multiplier=0.1)),
    gradient_transforms=(GradientTransformConfig(type="clip_by_global_norm"),),
    log_norms="total",
    ema=EmaConfig(average_decay=0.9),
    runtime=RuntimeConfig(seed=3, mixed_precision_dtype="float16", loss_scale="dynamic"),
  )
  before = grouped.weights(trainer)
  assert isinstance(trainer.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
  logs = small_tasks.train(trainer, 4)
  after = grouped.weights(trainer)
  assert before["stem/kernel"].tobytes() == after["stem/kernel"].tobytes()
  assert (before["block/kernel"] != after["block/kernel"]).any()
  assert np.isfinite(logs["gradient_norm"]) and logs["gradient_norm"] > 0
