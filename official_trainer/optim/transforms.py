"""What is done to the gradients of the global batch before the optimizer sees them, in the order of the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_trainer.config.named import Named
from official_trainer.optim.config import GradientTransformConfig

Pairs = list[tuple[Any, tf.Variable]]
TransformFn = Callable[..., Sequence[Any]]

_NAMED: Named[TransformFn] = Named("gradient transform")


def register_gradient_transform(name: str) -> Callable[[TransformFn], TransformFn]:
  """Registers `transform(gradients, variables, step, **arguments) -> gradients` under a name.

  It runs in replica context, traced, on the gradients of the global batch: the same on every replica. `gradients` are
  tensors or `tf.IndexedSlices`, none of them None; `variables` are theirs, in order; `step` is an int64 scalar, the
  number of updates of the optimizer before this one.

  Raises:
    ConfigError: if another function has the name already.
  """
  return _NAMED.register(name)


@dataclasses.dataclass
class GradientTransform:
  """One step of the chain.

  Attributes:
    kind: its type in the config.
    parameters: name -> float, or a scalar variable where a schedule moves it.
    apply: `apply(pairs, step, **parameters)` returns pairs. Runs in replica context, traced.
  """

  kind: str
  parameters: dict[str, Any]
  apply: Callable[..., Pairs]

  def __call__(self, pairs: Pairs, step: tf.Tensor) -> Pairs:
    return self.apply(pairs, step, **self.parameters)

  def __str__(self) -> str:
    written = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
    return f"{self.kind}({written})"


def build_transforms(configs: Sequence[GradientTransformConfig], seed: int) -> list[GradientTransform]:
  """Builds the chain of a config.

  Args:
    configs: in the order in which they are applied.
    seed: of the run: noise is a function of it and the step.

  Raises:
    ConfigError: if a function of a user's own is not registered.
  """
  return [_build(config, index, seed) for index, config in enumerate(configs)]


def _build(config: GradientTransformConfig, index: int, seed: int) -> GradientTransform:
  kind, settings = str(config.type), config.get()
  if kind == "custom":
    return GradientTransform(kind, dict(settings.arguments), _custom(settings.name, index))
  parameters = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
  functions: dict[str, Callable[..., Pairs]] = {
    "clip_by_global_norm": _clip_by_global_norm,
    "clip_by_norm": _clip_by_norm,
    "clip_by_value": _clip_by_value,
    "noise": _noise(index, seed),
    "centralize": _centralize,
  }
  return GradientTransform(kind, parameters, functions[kind])


def _clip_by_global_norm(pairs: Pairs, step: tf.Tensor, *, norm: Any) -> Pairs:
  del step
  gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], norm)
  return [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]


def _clip_by_norm(pairs: Pairs, step: tf.Tensor, *, norm: Any) -> Pairs:
  del step
  return [(tf.clip_by_norm(gradient, norm), variable) for gradient, variable in pairs]


def _clip_by_value(pairs: Pairs, step: tf.Tensor, *, value: Any) -> Pairs:
  del step
  return [(tf.clip_by_value(gradient, -value, value), variable) for gradient, variable in pairs]


def _noise(index: int, seed: int) -> Callable[..., Pairs]:
  def add(pairs: Pairs, step: tf.Tensor, *, eta: Any, gamma: Any) -> Pairs:
    variance = eta / tf.pow(1.0 + tf.cast(step, tf.float32), gamma)

    def noisy(number: int, gradient: Any) -> tf.Tensor:
      gradient = tf.convert_to_tensor(gradient)  # Every row of a sparse gradient is moved.
      # The key is the run's and the place in the chain, the counter the step's and the variable's: no two draws meet.
      key = tf.random.experimental.stateless_fold_in(tf.constant([seed, index], tf.int64), step)
      key = tf.random.experimental.stateless_fold_in(key, number)
      noise = tf.random.stateless_normal(tf.shape(gradient), key, dtype=tf.float32) * tf.sqrt(variance)
      return gradient + tf.cast(noise, gradient.dtype)

    return [(noisy(number, gradient), variable) for number, (gradient, variable) in enumerate(pairs)]

  return add


def _centralize(pairs: Pairs, step: tf.Tensor) -> Pairs:
  del step

  def centralized(gradient: Any, variable: tf.Variable) -> Any:
    if variable.shape.rank is None or variable.shape.rank < 2:
      return gradient
    gradient = tf.convert_to_tensor(gradient)
    return gradient - tf.reduce_mean(gradient, axis=list(range(gradient.shape.rank - 1)), keepdims=True)

  return [(centralized(gradient, variable), variable) for gradient, variable in pairs]


def _custom(name: str, index: int) -> Callable[..., Pairs]:
  transform = _NAMED.find(name, f"trainer.optimizer_config.gradient_transforms.{index}.custom.name")

  def apply(pairs: Pairs, step: tf.Tensor, **arguments: Any) -> Pairs:
    variables = [variable for _, variable in pairs]
    gradients = list(transform([gradient for gradient, _ in pairs], variables, step, **arguments))
    if len(gradients) != len(variables):
      raise ValueError(
        f"the gradient transform {name!r} returned {len(gradients)} gradients for {len(variables)} variables."
      )
    return list(zip(gradients, variables, strict=True))

  return apply
