"""Which numbers of a run schedules can move, by name.

learning_rate_factor               a factor on the learning rate, whatever schedule that has
optimizer/<name>                   a number of the optimizer: weight_decay, momentum, beta_1, ...
groups/<group>/lr_multiplier       a group's factor on its updates
groups/<group>/weight_decay        a group's weight decay
gradient_transforms/<kind>/<name>  a parameter of a transformation
ema/average_decay                  the decay of the averages
model/<layer>/<attribute>          a number of a layer, such as the rate of dropout
model/<variable>                   a scalar variable of the model that is not trained
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.config.nearest import nearest
from official_trainer.errors import ConfigError, Problem
from official_trainer.optim.config import ScheduleConfig
from official_trainer.optim.ema import Ema, NoEma
from official_trainer.optim.hyperparameters import scale_learning_rate
from official_trainer.optim.scheduled import Scheduled, Schedules, Target
from official_trainer.optim.schedules import build_schedule
from official_trainer.optim.updates import NoUpdates, Updates
from official_trainer.optim.variable_paths import layer_paths, variable_paths

_KEY = "trainer.schedules"
# Numbers that tf-keras looks at in Python, when the step is traced: a variable there would be taken for a condition.
_LOOKED_AT = {"RMSprop": ("momentum",)}
_NUMBERS = ("momentum", "beta_1", "beta_2", "rho", "epsilon")


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a trainer is made of, as far as schedules move it."""

  optimizer: Any
  updates: Updates | NoUpdates
  ema: Ema | NoEma
  model: tf_keras.Model


def scheduled_variables(configs: Mapping[str, ScheduleConfig], model: tf_keras.Model) -> list[tf.Variable]:
  """Returns the variables of the model that schedules move: nothing that could be averaged."""
  return [variable for path, variable in variable_paths(model) if f"model/{path}" in configs] if configs else []


def build_schedules(configs: Mapping[str, ScheduleConfig], parts: Parts) -> Schedules:
  """Builds the scheduled scalars of a config and puts their variables in place. Call under the strategy's scope.

  Without an optimizer (evaluation only), those of the model are built and the others left out.

  Args:
    configs: name -> schedule, with durations as numbers of steps.
    parts: what they move.

  Raises:
    ConfigError: naming every scalar that there is none of.
  """
  if not configs:
    return Schedules()
  targets = dict(_targets(parts))
  problems: list[Problem] = []
  scheduled = []
  for name, config in configs.items():
    if name in targets:
      scheduled.append(Scheduled(name, build_schedule(config, f"{_KEY}.{name}"), targets[name]))
    elif parts.optimizer is not None or name.startswith("model/"):
      problems.append(Problem(f"{_KEY}.{name}", _unknown(name, list(targets))))
  if problems:
    raise ConfigError(problems)
  return Schedules(scheduled)


def _unknown(name: str, known: list[str]) -> str:
  near = nearest(name, known, count=3)
  head = name.partition("/")[0]
  shown = near or [other for other in known if other.partition("/")[0] == head] or known
  return f"names no number that a schedule can move. The nearest: {', '.join(map(repr, shown[:8]))}."


def _targets(parts: Parts) -> Iterator[tuple[str, Target]]:
  if parts.optimizer is not None:
    yield from _of_optimizer(parts)
  if isinstance(parts.updates, Updates):
    yield from _of_updates(parts.updates)
  if isinstance(parts.ema, Ema):
    yield "ema/average_decay", Target(attach=parts.ema.schedule)
  yield from _of_model(parts.model)


def _of_optimizer(parts: Parts) -> Iterator[tuple[str, Target]]:
  inner = getattr(parts.optimizer, "inner_optimizer", parts.optimizer)
  optimizers = [inner, *parts.updates.own_optimizers.values()]

  def scale(variable: tf.Variable) -> None:
    for optimizer in optimizers:
      scale_learning_rate(optimizer, variable)

  yield "learning_rate_factor", Target(attach=scale)
  if isinstance(parts.updates, Updates):
    yield "optimizer/weight_decay", Target(attach=parts.updates.schedule_decay)
  if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
    for name, value in inner._hyper.items():  # noqa: SLF001  # There is no public list.
      # A momentum of 0 is left out of the step for good when a legacy optimizer is made.
      is_left_out = name == "momentum" and not getattr(inner, "_momentum", True)
      if isinstance(value, tf.Variable) and name in _NUMBERS and not is_left_out:
        yield f"optimizer/{name}", Target(variable=value, dtype=value.dtype)
    return
  refused = _LOOKED_AT.get(type(inner).__name__, ())
  for name in _NUMBERS:
    if isinstance(vars(inner).get(name), float | int) and name not in refused:
      # Not by `setattr`, which would make the variable one of the optimizer's in every checkpoint.
      yield f"optimizer/{name}", Target(attach=functools.partial(vars(inner).__setitem__, name))


def _of_updates(updates: Updates) -> Iterator[tuple[str, Target]]:
  for group in updates.groups:
    for name in ("lr_multiplier", "weight_decay"):
      yield f"groups/{group}/{name}", Target(attach=functools.partial(updates.schedule, group, name))
  kinds = [transform.kind for transform in updates.transforms]
  for index, transform in enumerate(updates.transforms):
    kind = transform.kind if kinds.count(transform.kind) == 1 else f"{transform.kind}#{index}"
    for name, value in transform.parameters.items():
      if isinstance(value, float | int):
        attach = functools.partial(transform.parameters.__setitem__, name)
        yield f"gradient_transforms/{kind}/{name}", Target(attach=attach)


def _of_model(model: tf_keras.Model) -> Iterator[tuple[str, Target]]:
  trained = {id(variable) for variable in model.trainable_variables}
  for path, variable in variable_paths(model):
    if id(variable) not in trained and variable.shape.rank == 0 and variable.dtype.is_floating:
      yield f"model/{path}", Target(variable=variable, dtype=variable.dtype)
  for path, layer in layer_paths(model):
    for name, value in vars(layer).items():
      if isinstance(value, float) and not name.startswith("_"):
        put = functools.partial(vars(layer).__setitem__, name)
        yield f"model/{path}/{name}", Target(attach=put, dtype=tf.as_dtype(layer.compute_dtype), detach=put)
