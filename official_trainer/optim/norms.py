"""L2 norms of gradients, parameters and updates, averaged over the steps of a report inside the compiled step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.optim.borders import key_of

GRADIENTS, PARAMETERS, UPDATES = "gradient_norm", "parameter_norm", "update_norm"


class NoNorms:
  """The null object: nothing is measured."""

  metrics: tuple[tf_keras.metrics.Metric, ...] = ()

  @contextlib.contextmanager
  def measured(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> Iterator[None]:
    """Measures nothing."""
    del pairs
    yield


class Norms:
  """Means of norms over steps: of all trained variables together, and of each group if asked for.

  Gradients are those of the global batch, before any transformation; parameters are those after the update.
  """

  def __init__(self, groups: Mapping[str, Sequence[tf.Variable]], *, per_group: bool):
    """Makes the metrics. Call under the strategy's scope.

    Args:
      groups: group -> its trained variables. All norms are those of its variables together.
      per_group: whether each group has norms of its own beside the total.
    """
    self._group_of = {key_of(variable): group for group, variables in groups.items() for variable in variables}
    self._names = list(groups) if per_group else []
    self._means = {
      (what, group): tf_keras.metrics.Mean(f"{what}/{group}" if group else what, dtype=tf.float32)
      for what in (GRADIENTS, PARAMETERS, UPDATES)
      for group in ("", *self._names)
    }
    self.metrics = tuple(self._means.values())

  @contextlib.contextmanager
  def measured(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> Iterator[None]:
    """Measures the update that the body does. Runs in replica context, traced: each replica measures the same.

    Args:
      pairs: (gradient over the global batch, variable).
    """
    variables = [variable for _, variable in pairs]
    before = [tf.identity(variable.read_value()) for variable in variables]
    self._add(GRADIENTS, variables, [_squares(gradient) for gradient, _ in pairs])
    yield
    after = [variable.read_value() for variable in variables]
    self._add(PARAMETERS, variables, [_squares(value) for value in after])
    changes = [_squares(new - old) for new, old in zip(after, before, strict=True)]
    self._add(UPDATES, variables, changes)

  def _add(self, what: str, variables: Sequence[tf.Variable], squares: Sequence[tf.Tensor]) -> None:
    self._means[what, ""].update_state(tf.sqrt(tf.add_n(list(squares))))
    for group in self._names:
      own = [s for v, s in zip(variables, squares, strict=True) if self._group_of.get(key_of(v)) == group]
      if own:
        self._means[what, group].update_state(tf.sqrt(tf.add_n(own)))


def build_norms(
  groups: Mapping[str, Sequence[tf.Variable]], wanted: str, scope: Callable[[], contextlib.AbstractContextManager[None]]
) -> Norms | NoNorms:
  """Returns what measures the norms that `trainer.log_norms` asks for. Call under the strategy's scope.

  Args:
    groups: see `Norms`.
    wanted: "none", "total" or "groups".
    scope: the variables of the means are made in its body.
  """
  if wanted == "none":
    return NoNorms()
  with scope():
    return Norms(groups, per_group=wanted == "groups")


def _squares(value: Any) -> tf.Tensor:
  values = value.values if isinstance(value, tf.IndexedSlices) else value
  return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))
