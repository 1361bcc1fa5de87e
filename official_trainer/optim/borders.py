"""The border to the two optimizer APIs of tf-keras: how one variable is updated and decayed under each."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras

Around = Callable[[tf.Variable, Callable[[], Any]], Any]
"""Updates a variable, given it and a function that does what the optimizer does."""


class Border(abc.ABC):
  """What the two APIs call by different names."""

  def __init__(self, optimizer: Any):
    """Stores an optimizer without loss scaling around it."""
    self.optimizer = optimizer

  @abc.abstractmethod
  def intercept(self, around: Around) -> None:
    """Makes `around` the way in which a variable is updated, on each replica's copy of it. Call once."""

  @abc.abstractmethod
  def aggregate(self, grads_and_vars: list[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
    """Sums gradients over replicas as `apply_gradients` would. Runs in replica context."""

  @abc.abstractmethod
  def decayed(self, variable: tf.Variable, rate: Any, update: Callable[[], Any], own: tf.Variable | None = None) -> Any:
    """Updates a variable, decayed.

    Args:
      variable: one replica's copy.
      rate: weight decay whatever the optimizer's own rules say, a float or a scalar variable; None to follow them.
      update: does what the optimizer does.
      own: weight decay where its own rules say that it decays; None for its own.
    """

  @abc.abstractmethod
  def own_decay(self, variable: tf.Variable) -> float | None:
    """Returns the weight decay that the optimizer's own settings give a variable; None where it has none."""

  @abc.abstractmethod
  def build(self, variables: list[tf.Variable]) -> None:
    """Makes the optimizer's variables, in a fixed order."""


class NewBorder(Border):
  """`tf_keras.optimizers.Optimizer`: decoupled weight decay in every optimizer, before all updates."""

  def intercept(self, around: Around) -> None:
    original = self.optimizer._update_step  # noqa: SLF001  # There is no public way to reach a single update.

    def update_step(gradient: Any, variable: tf.Variable) -> Any:
      return around(variable, lambda: original(gradient, variable))

    self.optimizer._update_step = update_step  # noqa: SLF001
    # All were decayed before the first was updated; each is decayed right before its own update now, to the same bits.
    self.optimizer._apply_weight_decay = lambda variables: None  # noqa: SLF001

  def aggregate(self, grads_and_vars: list[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
    return list(self.optimizer.aggregate_gradients(grads_and_vars))

  def decayed(self, variable: tf.Variable, rate: Any, update: Callable[[], Any], own: tf.Variable | None = None) -> Any:
    if rate is None and self.optimizer._use_weight_decay(variable):  # noqa: SLF001
      rate = self.optimizer.weight_decay if own is None else own
    if rate is not None:
      self._subtract(variable, rate)
    return update()

  def own_decay(self, variable: tf.Variable) -> float | None:
    rate = self.optimizer.weight_decay
    return rate if rate and self.optimizer._use_weight_decay(variable) else None  # noqa: SLF001

  def build(self, variables: list[tf.Variable]) -> None:
    self.optimizer.build(variables)

  def _subtract(self, variable: tf.Variable, rate: Any) -> None:
    if isinstance(rate, float | int) and not rate:
      return  # A decay of 0 changes no bit.
    learning_rate = tf.cast(self.optimizer.learning_rate, variable.dtype)
    variable.assign_sub(variable * tf.cast(rate, variable.dtype) * learning_rate)


class LegacyBorder(Border):
  """`tf_keras.optimizers.legacy.Optimizer`: each one decays in its own way, or not at all."""

  _RATE = "weight_decay_rate"
  _SWITCHES = ("_do_use_weight_decay", "_use_weight_decay")

  def intercept(self, around: Around) -> None:
    optimizer = self.optimizer
    self._apply_state: Any = None
    dense = optimizer._resource_apply_dense  # noqa: SLF001  # There is no public way to reach a single update.
    sparse = optimizer._resource_apply_sparse_duplicate_indices  # noqa: SLF001

    def apply_dense(grad: Any, var: tf.Variable, apply_state: Any = None) -> Any:
      with self._state(apply_state):
        return around(var, lambda: dense(grad, var, **self._state_argument()))

    def apply_sparse(grad: Any, var: tf.Variable, indices: Any, apply_state: Any = None) -> Any:
      with self._state(apply_state):
        return around(var, lambda: sparse(grad, var, indices, **self._state_argument()))

    optimizer._resource_apply_dense = apply_dense  # noqa: SLF001
    optimizer._resource_apply_sparse_duplicate_indices = apply_sparse  # noqa: SLF001

  def aggregate(self, grads_and_vars: list[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
    own_limit = getattr(self.optimizer, "gradient_clip_norm", 0.0)
    if own_limit > 0:  # AdamWeightDecay limits each replica's gradients, where it aggregates itself.
      gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in grads_and_vars], own_limit)
      grads_and_vars = [(gradient, v) for gradient, (_, v) in zip(gradients, grads_and_vars, strict=True)]
    grads_and_vars = self.optimizer._transform_unaggregated_gradients(grads_and_vars)  # noqa: SLF001
    return list(self.optimizer._aggregate_gradients(grads_and_vars))  # noqa: SLF001

  def decayed(self, variable: tf.Variable, rate: Any, update: Callable[[], Any], own: tf.Variable | None = None) -> Any:
    switch = self._switch
    if rate is None and own is not None and self._decays(variable):
      rate = own
    if rate is None:
      return update()
    is_off = isinstance(rate, float | int) and not rate
    if switch is None:
      if is_off:
        return update()
      learning_rate = self.optimizer._decayed_lr(variable.dtype.base_dtype)  # noqa: SLF001
      decay = variable.assign_sub(variable * tf.cast(rate, variable.dtype) * learning_rate)
      with tf.control_dependencies([decay]):
        return update()
    with _attribute(self.optimizer, switch, lambda name: not is_off), self._rate(rate):
      return update()

  def own_decay(self, variable: tf.Variable) -> float | None:
    switch = self._switch
    if switch is None or not getattr(self.optimizer, switch)(variable.name):
      return None
    return float(getattr(self.optimizer, self._RATE)) or None

  def build(self, variables: list[tf.Variable]) -> None:
    self.optimizer.iterations  # noqa: B018  # The property creates the variable.
    self.optimizer._create_all_weights(variables)  # noqa: SLF001  # The only way to make slots early.

  @property
  def _switch(self) -> str | None:
    """The name of the method that says which variables are decayed; None in an optimizer that decays none."""
    return next((name for name in self._SWITCHES if hasattr(self.optimizer, name)), None)

  def _decays(self, variable: tf.Variable) -> bool:
    """Whether the optimizer's rules say that a variable is decayed, were its rate not 0."""
    switch = self._switch
    if switch is None:
      return True
    with _attribute(self.optimizer, self._RATE, 1.0):
      return bool(getattr(self.optimizer, switch)(variable.name))

  @contextlib.contextmanager
  def _state(self, apply_state: Any) -> Iterator[None]:
    """Keeps the numbers that the optimizer has prepared for this step within reach of `decayed`."""
    before, self._apply_state = self._apply_state, apply_state
    try:
      yield
    finally:
      self._apply_state = before

  def _state_argument(self) -> dict[str, Any]:
    return {} if self._apply_state is None else {"apply_state": self._apply_state}

  @contextlib.contextmanager
  def _rate(self, rate: Any) -> Iterator[None]:
    """Puts another rate in the place of the optimizer's: among the prepared numbers, or as its attribute."""
    prepared = self._apply_state or {}
    if any(self._RATE in numbers for numbers in prepared.values()):
      changed = {key: {**numbers, self._RATE: tf.cast(rate, key[1])} for key, numbers in prepared.items()}
      with self._state(changed):
        yield
    else:
      with _attribute(self.optimizer, self._RATE, rate):
        yield


def border_of(optimizer: Any) -> Border:
  """Returns the border of an optimizer of either API; loss scaling around it is looked through."""
  inner = getattr(optimizer, "inner_optimizer", optimizer)
  return LegacyBorder(inner) if isinstance(inner, tf_keras.optimizers.legacy.Optimizer) else NewBorder(inner)


def key_of(variable: tf.Variable) -> Hashable:
  """Returns what is the same for a variable and each replica's copy of it."""
  # A copy knows the variable that it belongs to by itself or by its handle, which variables of strategies must not be
  # asked for here.
  if not hasattr(variable, "_distributed_container") and isinstance(variable, tf.__internal__.CompositeTensor):
    holder = variable.handle
  else:
    holder = variable
  if hasattr(holder, "_distributed_container"):
    variable = holder._distributed_container()  # noqa: SLF001  # As tf-keras tells variables apart.
  return variable._unique_id  # noqa: SLF001


@contextlib.contextmanager
def _attribute(target: Any, name: str, value: Any) -> Iterator[None]:
  """Gives an object another attribute for the length of the body."""
  own = vars(target).get(name, None)
  had_own = name in vars(target)
  object.__setattr__(target, name, value)
  try:
    yield
  finally:
    if had_own:
      object.__setattr__(target, name, own)
    else:
      object.__delattr__(target, name)
