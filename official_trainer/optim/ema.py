"""Exponential moving average of a model's weights, outside the optimizer (foundation F4).

average <- average + (1 - decay) * (weight - average), after every update. With `dynamic_decay` the decay is
min(average_decay, (1 + n) / (10 + n)) for the n-th update after `start_step`, as `tf.train.ExponentialMovingAverage`
does with `num_updates`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf


class NoEma:
  """The null object: a run without averaging."""

  averages: tuple[tf.Variable, ...] = ()

  def reset(self) -> None:
    """Nothing to copy."""

  def update(self, step: tf.Tensor) -> None:
    """Nothing to average."""
    del step

  @contextlib.contextmanager
  def swapped_in(self, step: int) -> Iterator[None]:
    """Evaluates the raw weights."""
    del step
    yield

  @contextlib.contextmanager
  def swapped_out(self) -> Iterator[None]:
    """Raw weights are always in place."""
    yield


class Ema:
  """Averages of a model's floating-point variables, which can be swapped in exactly."""

  def __init__(
    self,
    weights: Sequence[tf.Variable],
    *,
    average_decay: float,
    start_step: int = 0,
    dynamic_decay: bool = True,
    round_statistics: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
  ):
    """Creates the averages as copies of the weights. Call under the strategy's scope, after the model was built.

    Args:
      weights: variables to average; those of integer or boolean type are left out.
      average_decay: decay in [0, 1].
      start_step: updates before this step copy the weights; evaluation before it uses the raw weights.
      dynamic_decay: whether the decay grows from 2/11 towards `average_decay`.
      round_statistics: applied to the averages of variables that each replica keeps for itself (batch normalisation's
        statistics), so that a checkpoint's mean over replicas is the value that was evaluated.
    """
    self._weights = [w for w in weights if w.dtype.is_floating]
    self._average_decay: float | tf.Variable = average_decay
    self._start_step = start_step
    self._dynamic_decay = dynamic_decay
    self._round_statistics = round_statistics
    self._strategy = tf.distribute.get_strategy()
    self.averages = [_copy_of(weight) for weight in self._weights]
    # On the device's side of the swap: an interrupt between the swap and the Python statement that would note it cannot
    # make the two disagree.
    self._is_swapped = tf.Variable(
      False, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="ema_is_swapped"
    )
    self._swap = tf.function(self._swap_all)

  def schedule(self, average_decay: tf.Variable) -> None:
    """Puts a float32 scalar variable in the place of the decay, read at every update."""
    self._average_decay = average_decay

  def reset(self) -> None:
    """Makes every average equal to its weight: after weights were loaded that brought no averages of their own."""
    for average, weight in zip(self.averages, self._weights, strict=True):
      average.assign(weight.read_value())

  def decay(self, step: tf.Tensor) -> tf.Tensor:
    """Returns the float32 decay used by the update that completed step `step`."""
    updates = tf.cast(step - self._start_step, tf.float32)
    decay = tf.convert_to_tensor(self._average_decay, tf.float32)
    if self._dynamic_decay:
      decay = tf.minimum(decay, (1.0 + updates) / (10.0 + updates))
    if self._start_step == 0:
      return decay
    return tf.where(updates < 0, 0.0, decay)

  def update(self, step: tf.Tensor) -> None:
    """Moves the averages towards the weights. Runs in cross-replica context at the end of every training step.

    Args:
      step: int64 scalar, number of completed updates, this one included.
    """
    rate = 1.0 - self.decay(step)
    # a - (a - w) is not w in floating point: where the decay is 0 the weight is copied.
    is_fixed = isinstance(self._average_decay, float | int)
    may_copy = self._start_step > 0 or not is_fixed or self._average_decay == 0

    def moved(average: tf.Variable, weight: tf.Variable) -> tf.Tensor:
      value = average - tf.cast(rate, average.dtype) * (average - weight)
      return tf.where(rate < 1.0, value, weight) if may_copy else value

    def move(average: tf.Variable, weight: tf.Variable) -> None:
      if may_copy:
        average.assign(moved(average, weight))
        return
      # average -= rate * (average - weight), in one op less than by `assign_sub`: there is one for each weight.
      tf.raw_ops.ResourceApplyGradientDescent(
        var=average.handle, alpha=tf.cast(rate, average.dtype), delta=average - weight
      )

    def move_statistics(average: tf.Variable, weight: tf.Variable) -> None:
      average.assign(self._round_statistics(moved(average, weight)))

    for average, weight in zip(self.averages, self._weights, strict=True):
      per_replica = weight.synchronization == tf.VariableSynchronization.ON_READ
      self._strategy.extended.update(average, move_statistics if per_replica else move, args=(weight,), group=False)

  @contextlib.contextmanager
  def swapped_in(self, step: int) -> Iterator[None]:
    """Puts the averages where the weights are, for the body; undone bit for bit, also when the body raises.

    Args:
      step: number of completed updates; before `start_step` nothing is swapped.
    """
    if step < self._start_step or self.is_swapped:
      yield
      return
    try:
      self._swap()
      yield
    finally:
      if self.is_swapped:
        self._swap()

  @contextlib.contextmanager
  def swapped_out(self) -> Iterator[None]:
    """Puts the raw weights in place for the body: what is saved under `model` are the raw weights, always."""
    if not self.is_swapped:
      yield
      return
    try:
      self._swap()
      yield
    finally:
      if not self.is_swapped:
        self._swap()

  @property
  def is_swapped(self) -> bool:
    return bool(self._is_swapped.numpy())

  def _swap_all(self) -> None:
    def exchange(weight: tf.Variable, average: tf.Variable) -> None:
      held = tf.identity(weight.read_value())
      weight.assign(average.read_value())
      average.assign(held)

    for average, weight in zip(self.averages, self._weights, strict=True):
      self._strategy.extended.update(weight, exchange, args=(average,), group=False)
    self._is_swapped.assign(tf.logical_not(self._is_swapped))


def build_ema(
  model: tf.Module,
  settings: Any,
  round_statistics: Callable[[tf.Tensor], tf.Tensor],
  without: Sequence[tf.Variable] = (),
) -> Ema | NoEma:
  """Returns the averages of a model's weights. Call as `Ema`.

  Args:
    model: a built model.
    settings: an EmaConfig, or None.
    round_statistics: see `Ema`.
    without: variables of the model that are not averaged.
  """
  if not settings:
    return NoEma()
  weights = model.trainable_variables if settings.trainable_weights_only else model.variables
  return Ema(
    [weight for weight in weights if not any(weight is other for other in without)],
    average_decay=settings.average_decay,
    start_step=settings.start_step,
    dynamic_decay=settings.dynamic_decay,
    round_statistics=round_statistics,
  )


def _copy_of(weight: tf.Variable) -> tf.Variable:
  name = weight.name.split(":")[0] + "/average"
  return tf.Variable(
    tf.convert_to_tensor(weight.read_value()),
    dtype=weight.dtype,
    trainable=False,
    name=name,
    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
  )
