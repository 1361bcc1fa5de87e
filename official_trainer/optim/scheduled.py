"""The scalars of a run that schedules move: one variable each, set inside the compiled step before every update."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_trainer.optim.schedules import Schedule, Series


@dataclasses.dataclass(frozen=True)
class Target:
  """A number that a schedule can move.

  Attributes:
    dtype: of the number.
    attach: puts a scalar variable in the place of the number.
    detach: puts a plain number back; None where the variable is no obstacle to whoever exports the model.
    variable: the variable that holds the number already, where there is one.
  """

  attach: Callable[[tf.Variable], None] = lambda variable: None
  dtype: tf.DType = tf.float32
  detach: Callable[[float], None] | None = None
  variable: tf.Variable | None = None


class Scheduled:
  """One scalar, its variable and its schedule."""

  def __init__(self, name: str, schedule: Schedule, target: Target):
    """Makes the variables and puts them in place. Call under the strategy's scope.

    Args:
      name: in the config and in reports.
      schedule: its rule.
      target: what is moved.
    """
    self.name = name
    self.target = target
    self._schedule = schedule
    self._coefficients = _variable(tf.zeros([schedule.num_coefficients]), "schedule_coefficients")
    own = target.variable
    self.variable = _variable(tf.zeros([], target.dtype), "scheduled") if own is None else own
    target.attach(self.variable)

  def refresh(self, history: Series) -> None:
    """Takes the coefficients from the history. Runs eagerly."""
    coefficients = list(self._schedule.coefficients(history))
    if len(coefficients) != self._schedule.num_coefficients:
      raise ValueError(
        f"the schedule of {self.name!r} gave {len(coefficients)} coefficients;"
        f" its num_coefficients is {self._schedule.num_coefficients}."
      )
    self._coefficients.assign(coefficients)

  def assign(self, step: tf.Tensor) -> None:
    """Sets the scalar for the update after `step` completed ones. Runs in cross-replica context, traced or eager."""
    value = self._schedule.value(tf.cast(step, tf.float32), self._coefficients.read_value())
    self.variable.assign(tf.cast(value, self.variable.dtype))


class Schedules:
  """All scheduled scalars of a run. Nothing of it is saved: every value follows from the step and the history."""

  def __init__(self, scheduled: Sequence[Scheduled] = ()):
    self._scheduled = tuple(scheduled)

  def refresh(self, history_as_of: Callable[[int], Any], step: int) -> None:
    """Takes over what the schedules need of the history for the updates after `step` completed ones. Runs eagerly.

    Args:
      history_as_of: returns the history as it was after the last evaluation at a step or before it.
      step: number of completed updates.
    """
    if self._scheduled:
      history = history_as_of(step)
      for scheduled in self._scheduled:
        scheduled.refresh(history)

  def set_for_evaluation(self, history_as_of: Callable[[int], Any], step: int) -> None:
    """Sets every scalar as the update that completed `step` had it. Runs eagerly; arguments as those of `refresh`."""
    before = max(step - 1, 0)
    self.refresh(history_as_of, before)
    self.assign(tf.constant(before, tf.int64))

  def assign(self, step: tf.Tensor) -> None:
    """Sets every scalar for the update after `step` completed ones. Runs in cross-replica context, traced or eager."""
    for scheduled in self._scheduled:
      scheduled.assign(step)

  def values(self) -> Mapping[str, tf.Tensor]:
    """Returns name -> value in the last update. Runs eagerly."""
    return {scheduled.name: scheduled.variable.read_value() for scheduled in self._scheduled}

  @contextlib.contextmanager
  def as_numbers(self) -> Iterator[None]:
    """Puts plain numbers in the place of the model's scheduled attributes, so that it can be exported."""
    detached = [scheduled for scheduled in self._scheduled if scheduled.target.detach is not None]
    for scheduled in detached:
      scheduled.target.detach(float(scheduled.variable.read_value()))
    try:
      yield
    finally:
      for scheduled in detached:
        scheduled.target.attach(scheduled.variable)


def _variable(value: tf.Tensor, name: str) -> tf.Variable:
  return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name=name)
