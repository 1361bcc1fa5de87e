"""Builds what stands between gradients and variables from a trainer config."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.batch_norm import freeze_batch_norm
from official_trainer.optim.borders import key_of
from official_trainer.optim.build import build_optimizer
from official_trainer.optim.config import OptimizationConfig, ParamGroupConfig
from official_trainer.optim.norms import build_norms
from official_trainer.optim.param_groups import Membership, assign
from official_trainer.optim.transforms import build_transforms
from official_trainer.optim.updates import NoUpdates, Updates
from official_trainer.optim.variable_paths import variable_paths

FROZEN_AFFINE = "batch_norm"
"""Name of the group of gammas and betas that `trainer.batch_norm` freezes."""


def build_updates(
  optimizer: Any,
  model: tf_keras.Model,
  options: TrainerConfig,
  *,
  seed: int,
  scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Updates | NoUpdates:
  """Takes the place of the optimizer's `apply_gradients`, where the config asks for something beside it.

  Call under the strategy's scope, before slots are made.

  Args:
    optimizer: a tf-keras optimizer of either API, with or without loss scaling; None for evaluation only.
    model: a built model.
    options: its groups, transformations, norms and frozen layers.
    seed: of the run.
    scope: the variables of metrics are made in its body.

  Raises:
    ConfigError: if a rule matches nothing, or nothing is left to train.
  """
  frozen = freeze_batch_norm(model, options.batch_norm)
  if optimizer is None:
    return NoUpdates(None, ())
  config = options.optimizer_config
  moved = any(name == "optimizer/weight_decay" or name.startswith("groups/") for name in options.schedules)
  if not (moved or frozen or config.param_groups or config.gradient_transforms or options.log_norms != "none"):
    return NoUpdates(optimizer, model.trainable_variables)
  members = memberships(model, config.param_groups, frozen)
  groups: dict[str, list[tf.Variable]] = {}
  for _, variable, member in members:
    if not member.frozen:
      groups.setdefault(member.group, []).append(variable)
  if not groups:
    message = "leaves nothing to train: every variable is frozen."
    raise ConfigError.of("trainer.optimizer_config.param_groups", message)
  return Updates(
    optimizer,
    [(variable, member) for _, variable, member in members],
    own_optimizers={
      rule.label: build_optimizer(_own_config(config, rule)) for rule in config.param_groups if rule.optimizer
    },
    transforms=build_transforms(config.gradient_transforms, seed),
    norms=build_norms(groups, options.log_norms, scope),
  )


def memberships(
  model: tf_keras.Model, rules: Sequence[ParamGroupConfig], frozen: Sequence[tf.Variable]
) -> list[tuple[str, tf.Variable, Membership]]:
  """Returns (path, variable, membership) of the trainable variables, in their order in the model."""
  paths = {key_of(variable): path for path, variable in variable_paths(model)}
  trainable = [(paths[key_of(variable)], variable) for variable in model.trainable_variables]
  kept = {key_of(variable) for variable in frozen}
  by_path = assign([path for path, variable in trainable if key_of(variable) not in kept], rules)
  still = Membership(group=FROZEN_AFFINE, frozen=True)
  return [(path, variable, by_path.get(path, still)) for path, variable in trainable]


def _own_config(config: OptimizationConfig, rule: ParamGroupConfig) -> OptimizationConfig:
  return OptimizationConfig(
    optimizer=rule.optimizer,
    learning_rate=rule.learning_rate or config.learning_rate,
    warmup=rule.warmup or config.warmup,
    legacy=config.legacy,
  )
