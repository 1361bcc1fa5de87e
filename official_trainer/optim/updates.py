"""What happens between the gradients that a task hands over and the variables: groups, transformations, norms.

    task.train_step -> optimizer.apply_gradients(pairs)
      frozen variables are left out
      gradients are summed over replicas, where something below needs those of the global batch
      transformations, in the order of the config
      for each optimizer: its variables, each one decayed, updated, and the update multiplied as its group says

The names of slots and their places in a checkpoint are those of the optimizer without all this.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.optim.borders import Border, border_of, key_of
from official_trainer.optim.build import applied_learning_rate
from official_trainer.optim.config import DEFAULT_GROUP
from official_trainer.optim.group_columns import GroupColumns
from official_trainer.optim.norms import NoNorms, Norms
from official_trainer.optim.param_groups import Membership
from official_trainer.optim.transforms import GradientTransform


class NoUpdates:
  """The null object: the optimizer does what it does, to all trainable variables."""

  def __init__(self, optimizer: Any, variables: Sequence[tf.Variable]):
    self._optimizer = optimizer
    self._variables = list(variables)

  own_optimizers: Mapping[str, Any] = {}
  notes: Sequence[str] = ()
  metrics: tuple[tf_keras.metrics.Metric, ...] = ()

  def build_slots(self) -> None:
    """Makes the optimizer's variables. Call under the strategy's scope."""
    if self._optimizer is not None and self._variables:
      border_of(self._optimizer).build(self._variables)

  def columns(self, named: Iterable[tuple[str, tf.Variable]]) -> dict[str, GroupColumns]:
    """There are no groups."""
    del named
    return {}

  def learning_rates(self, global_step: tf.Variable) -> dict[str, Any]:
    """Returns what a report says about the learning rate of the last update."""
    return {"learning_rate": applied_learning_rate(self._optimizer, global_step)}

  @property
  def trained(self) -> list[tf.Variable]:
    """The variables that are updated."""
    return self._variables


class Updates:
  """Stands between `optimizer.apply_gradients` and the variables."""

  def __init__(
    self,
    optimizer: Any,
    members: Sequence[tuple[tf.Variable, Membership]],
    *,
    own_optimizers: Mapping[str, Any] | None = None,
    transforms: Sequence[GradientTransform] = (),
    norms: Norms | NoNorms | None = None,
  ):
    """Takes the place of `apply_gradients`. Call under the strategy's scope, before slots are made.

    Args:
      optimizer: a tf-keras optimizer of either API, with or without loss scaling.
      members: each trainable variable, and how it is updated.
      own_optimizers: group -> its own optimizer.
      transforms: of the gradients, in order.
      norms: what is measured.
    """
    self._optimizer = optimizer
    self._members = {key_of(variable): member for variable, member in members}
    self._trained = [(variable, member) for variable, member in members if not member.frozen]
    self._frozen = [member for _, member in members if member.frozen]
    self.own_optimizers = dict(own_optimizers or {})
    self.transforms = list(transforms)
    self._norms = norms or NoNorms()
    self._main = border_of(optimizer)
    self._own = {group: border_of(own) for group, own in self.own_optimizers.items()}
    self._scheduled: dict[tuple[str, str], tf.Variable] = {}
    self._own_decay: tf.Variable | None = None
    self._apply = {id(border): border.optimizer.apply_gradients for border in (self._main, *self._own.values())}
    # Looked through loss scaling: what that hands on is unscaled, finite and summed already.
    self._main.optimizer.apply_gradients = self._apply_all
    for border in (self._main, *self._own.values()):
      border.intercept(self._update_with(border))

  @property
  def metrics(self) -> tuple[tf_keras.metrics.Metric, ...]:
    """The metrics of a report that are measured here."""
    return self._norms.metrics

  @property
  def trained(self) -> list[tf.Variable]:
    """The variables that are updated."""
    return [variable for variable, _ in self._trained]

  def schedule(self, group: str, name: str, value: tf.Variable) -> None:
    """Puts a scalar variable in the place of a group's number: "lr_multiplier" or "weight_decay"."""
    self._scheduled[group, name] = value

  def schedule_decay(self, value: tf.Variable) -> None:
    """Puts a scalar variable in the place of the optimizer's own weight decay, wherever that would decay."""
    self._own_decay = value

  @property
  def notes(self) -> list[str]:
    """Lines that say what is done, for people."""
    lines = []
    if self.transforms:
      lines.append(f"gradients: {', then '.join(map(str, self.transforms))}, over the global batch")
    members = [*(member for _, member in self._trained), *self._frozen]
    counts = collections.Counter(f"{member.group}{' (frozen)' if member.frozen else ''}" for member in members)
    if set(counts) != {DEFAULT_GROUP}:
      shown = ", ".join(f"{group}: {count}" for group, count in counts.items())
      lines.append(f"variables of each parameter group: {shown}")
    return lines

  def columns(self, named: Iterable[tuple[str, tf.Variable]]) -> dict[str, GroupColumns]:
    """Returns what the parameter table says of the trainable ones among these variables.

    Args:
      named: (path, variable).
    """
    found = {}
    for path, variable in named:
      member = self._members.get(key_of(variable))
      if member is not None:
        own = self._border_of(member).own_decay(variable)
        found[path] = GroupColumns(
          group=member.group,
          lr_multiplier=member.lr_multiplier * member.layer_factor,
          weight_decay=None if member.frozen else own if member.weight_decay is None else member.weight_decay,
          frozen=member.frozen,
        )
    return found

  @property
  def groups(self) -> list[str]:
    """The names of the groups that are trained."""
    return list(dict.fromkeys(member.group for _, member in self._trained))

  def build_slots(self) -> None:
    """Makes the optimizers' variables, in a fixed order. Call under the strategy's scope."""
    for border in (self._main, *self._own.values()):
      variables = [variable for variable, member in self._trained if self._border_of(member) is border]
      if variables:
        border.build(variables)

  def learning_rates(self, global_step: tf.Variable) -> dict[str, Any]:
    """Returns the learning rate of the last update, and that of each group with another one."""
    rates = {"learning_rate": applied_learning_rate(self._optimizer, global_step)}
    for member in dict.fromkeys(member for _, member in self._trained if member.group != DEFAULT_GROUP):
      rate = applied_learning_rate(self._border_of(member).optimizer, global_step)
      # Of a group with layer-wise decay: the rate of the highest layer.
      rates.setdefault(f"learning_rate/{member.group}", rate * self._multiplier_of_group(member))
    return rates

  def _apply_all(
    self, grads_and_vars: Iterable[tuple[Any, tf.Variable]], name: str | None = None, **kwargs: Any
  ) -> Any:
    """Does what `apply_gradients` does. Runs in replica context, traced."""
    pairs = [(gradient, v) for gradient, v in grads_and_vars if not self._member(v).frozen]
    aggregates = kwargs.get("experimental_aggregate_gradients", True) and not kwargs.get("skip_gradients_aggregation")
    if aggregates and (self.transforms or self._norms.metrics):
      pairs, aggregates = self._main.aggregate(pairs), False
    present = [(gradient, v) for gradient, v in pairs if gradient is not None]
    missing = [(None, v) for gradient, v in pairs if gradient is None]  # The optimizer warns of them.
    with self._norms.measured(present):
      for transform in self.transforms:
        present = transform(present, self._main.optimizer.iterations)
      for border in (self._main, *self._own.values()):
        self._apply_by(border, [*present, *missing], aggregates, name)
    return self._main.optimizer.iterations

  def _apply_by(
    self, border: Border, pairs: Sequence[tuple[Any, tf.Variable]], aggregates: bool, name: str | None
  ) -> None:
    own = [(gradient, v) for gradient, v in pairs if self._border_of(self._member(v)) is border]
    # The one keyword for it that both APIs know.
    kwargs = {} if aggregates else {"experimental_aggregate_gradients": False}
    if own:
      self._apply[id(border)](own, name=name, **kwargs)
    else:
      border.optimizer.iterations.assign_add(1)

  def _update_with(self, border: Border) -> Callable[[tf.Variable, Callable[[], Any]], Any]:
    def around(variable: tf.Variable, update: Callable[[], Any]) -> Any:
      own_decay = self._own_decay if border is self._main else None
      member = self._member(variable)
      multiplier = self._multiplier(member)
      if isinstance(multiplier, float) and multiplier == 1.0:
        return border.decayed(variable, self._decay(member), update, own_decay)
      before = tf.identity(variable.read_value())
      done = border.decayed(variable, self._decay(member), update, own_decay)
      with tf.control_dependencies([done] if isinstance(done, tf.Operation | tf.Tensor) else []):
        after = variable.read_value()
        return variable.assign(before + tf.cast(multiplier, before.dtype) * (after - before))

    return around

  def _member(self, variable: tf.Variable) -> Membership:
    return self._members.get(key_of(variable), Membership())

  def _border_of(self, member: Membership) -> Border:
    return self._own.get(member.group, self._main)

  def _multiplier_of_group(self, member: Membership) -> Any:
    return self._scheduled.get((member.group, "lr_multiplier"), member.lr_multiplier)

  def _multiplier(self, member: Membership) -> Any:
    return self._multiplier_of_group(member) * member.layer_factor

  def _decay(self, member: Membership) -> Any:
    return self._scheduled.get((member.group, "weight_decay"), member.weight_decay)
