"""Groups, clipping and decay: what happens between gradients and weights."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.base import from_dict
from official_trainer.errors import ConfigError
from official_trainer.optim.build import build_optimizer
from official_trainer.optim.config import (
  ClipByGlobalNormConfig,
  ClipByValueConfig,
  GradientTransformConfig,
  OptimizationConfig,
  ParamGroupConfig,
)
from official_trainer.optim.param_groups import Membership
from official_trainer.optim.updates import Updates
from tests import small_tasks, tiny
from tests.optim import grouped

pytestmark = pytest.mark.usefixtures("logical_cpus")

CLIP = GradientTransformConfig(type="clip_by_global_norm", clip_by_global_norm=ClipByGlobalNormConfig(norm=0.1))
CUT = GradientTransformConfig(type="clip_by_value", clip_by_value=ClipByValueConfig(value=1.0))


def test_d5_the_clipped_gradient_is_that_of_the_global_batch_on_one_replica_and_on_two():
  def change(num_replicas):
    trainer = grouped.build(
      "sgd", rate=1.0, num_replicas=num_replicas, layers=grouped.plain, gradient_transforms=(CLIP,), log_norms="total"
    )
    before = grouped.weights(trainer)
    logs = small_tasks.train(trainer, 1)
    return {path: value - before[path] for path, value in grouped.weights(trainer).items()}, logs

  (one, logs), (two, other) = change(1), change(2)
  assert logs["gradient_norm"] > 0.1  # There is something to clip.
  assert logs["update_norm"] == pytest.approx(0.1, rel=1e-5)
  assert other == pytest.approx(logs, rel=1e-5)
  for path, value in one.items():
    np.testing.assert_allclose(two[path], value, atol=1e-7, err_msg=path)


def test_d19_the_change_of_a_backbone_is_a_tenth_of_what_it_would_be():
  def change(groups):
    trainer = grouped.build("adamw_experimental", layers=grouped.plain, param_groups=groups)
    before = grouped.weights(trainer)
    small_tasks.train(trainer, 1)
    return {path: value - before[path] for path, value in grouped.weights(trainer).items()}

  plain, slow = change(()), change((ParamGroupConfig(pattern="stem|block", lr_multiplier=0.1),))
  for path in plain:
    factor = 1.0 if path.startswith("head") else 0.1
    np.testing.assert_allclose(slow[path], factor * plain[path], atol=1e-7, err_msg=path)


def test_d20_decay_can_be_that_of_kernels_only():
  optimizer = build_optimizer(small_tasks.optimization("adamw_experimental", 0.1, weight_decay=0.5))
  kernel, bias = tf.Variable(tf.ones([2, 2]), name="kernel"), tf.Variable(tf.ones([2]), name="bias")
  Updates(optimizer, [(kernel, Membership()), (bias, Membership(weight_decay=0.0))]).build_slots()
  optimizer.apply_gradients([(tf.zeros([2, 2]), kernel), (tf.zeros([2]), bias)])
  assert bias.numpy().tolist() == [1.0, 1.0]
  np.testing.assert_allclose(kernel.numpy(), 1 - 0.1 * 0.5, rtol=1e-6)


def test_d21_the_chain_is_printed_in_the_order_in_which_it_is_applied(tmp_path):
  rule = ParamGroupConfig(pattern="bias", frozen=True)
  run = tiny.build(tmp_path, mode="train", train_steps=1, gradient_transforms=(CUT, CLIP), param_groups=(rule,))
  run.run()
  assert "gradients: clip_by_value(value=1.0), then clip_by_global_norm(norm=0.1), over the global batch" in run.said
  assert "variables of each parameter group: default: 1, bias (frozen): 1" in run.said


def test_d22_a_setting_that_the_optimizer_does_not_know_is_refused_with_the_nearest():
  with pytest.raises(ConfigError, match="optimizer.adam.beta1: unknown key. Did you mean 'optimizer.adam.beta_1'"):
    from_dict(OptimizationConfig, {"optimizer": {"type": "adam", "adam": {"beta1": 0.8}}})
