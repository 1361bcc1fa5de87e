"""Updates that are not finite are left out, inside the compiled step (`trainer.skip_nonfinite_updates`).

When a gradient of any replica holds NaN or infinity, no replica applies its own: weights, slots and the optimizer's
count of updates, statistics of batch normalisation, averages and the metrics of the report stay as they were, bit for
bit. Only the step goes on, since the batch has been used. How many updates were left out is reported as
"skipped_updates".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

SKIPPED = "skipped_updates"


class NoGuard:
  """The null object: every update is applied, whatever it is."""

  metrics: tuple[tf_keras.metrics.Metric, ...] = ()
  has_skipped = False

  def keep(self, accumulators: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Keeps nothing."""
    del accumulators
    return []

  def settle(self, accumulators: Sequence[tf.Variable], kept: Sequence[tf.Tensor]) -> None:
    """Puts nothing back."""
    del accumulators, kept

  @contextlib.contextmanager
  def across_replicas(self) -> Iterator[None]:
    """Keeps nothing."""
    yield

  def unless_skipped(self, update: Callable[[], None]) -> None:
    update()


class UpdateGuard:
  """Stands before an optimizer's `apply_gradients`, and keeps what a bad step has touched besides the weights."""

  def __init__(self, optimizer: Any, model: tf_keras.Model):
    """Takes the place of `optimizer.apply_gradients`. Call under the strategy's scope.

    Args:
      optimizer: a tf-keras optimizer of either API. One with dynamic loss scaling leaves out bad updates by itself, and
        has to see them: its updates are not held back, everything else is kept here as well.
      model: the model, whose statistics are kept.
    """
    self._apply = optimizer.apply_gradients
    self._optimizer = optimizer
    self._holds_back = not getattr(optimizer, "dynamic", False)
    # Those that layers make for themselves; frozen weights are trainable variables of a layer that is not trained.
    self._statistics = [v for v in model.variables if not v.trainable and v.dtype.is_floating]
    self._is_good = tf.Variable(
      True,
      trainable=False,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      name="update_is_finite",
    )
    self._skipped = tf_keras.metrics.Sum(SKIPPED)
    self.metrics = (self._skipped,)
    optimizer.apply_gradients = self._apply_if_finite

  @property
  def has_skipped(self) -> bool:
    """Whether this report has left out an update. Runs eagerly."""
    return float(self._skipped.result()) > 0

  def keep(self, accumulators: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Returns what `settle` may have to put back. Runs in replica context, traced, before the step.

    Args:
      accumulators: variables of the metrics that the step updates.
    """
    self._is_good.assign(True)
    return [tf.identity(variable) for variable in accumulators]

  def settle(self, accumulators: Sequence[tf.Variable], kept: Sequence[tf.Tensor]) -> None:
    """Puts the accumulators back if the step's update was left out. Runs in replica context, traced, after the step."""
    is_good = tf.identity(self._is_good)
    _put_back(accumulators, kept, is_good)
    is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    self._skipped.update_state(tf.cast(tf.logical_and(is_first, tf.logical_not(is_good)), tf.float32))

  @contextlib.contextmanager
  def across_replicas(self) -> Iterator[None]:
    """Puts the model's statistics back after a step whose update was left out. Runs in cross-replica context."""
    before = [tf.identity(variable.read_value()) for variable in self._statistics]
    yield
    _put_back(self._statistics, before, self._is_good.read_value())

  def unless_skipped(self, update: Callable[[], None]) -> None:
    """Runs `update` if this step's update was applied. Runs in cross-replica context, traced."""

    def run() -> tf.Tensor:
      update()
      return tf.constant(True)

    tf.cond(self._is_good.read_value(), run, lambda: tf.constant(False))

  def _apply_if_finite(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]], *args: Any, **kwargs: Any) -> Any:
    """Does what `apply_gradients` does, if the gradients of all replicas are finite. Runs in replica context."""
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]
    gradients = [gradient for gradient, _ in pairs]
    context = tf.distribute.get_replica_context()
    num_bad = tf.cast(tf.logical_not(_all_finite(gradients)), tf.float32)
    is_good = tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, num_bad), 0.0)
    # A step may apply several times; one bad time is enough.
    self._is_good.assign(tf.logical_and(self._is_good, is_good))
    if not self._holds_back:
      return self._apply(pairs, *args, **kwargs)

    def apply(*replica_gradients: Any) -> tf.Tensor:
      self._apply(list(zip(replica_gradients, variables, strict=True)), *args, **kwargs)
      return tf.constant(True)

    def leave_out() -> tf.Tensor:
      return tf.constant(False)

    if not context.strategy.extended._use_merge_call():  # noqa: SLF001  # No public way to ask.
      tf.cond(is_good, lambda: apply(*gradients), leave_out)
      return self._optimizer.iterations

    # The optimizer itself leaves the replica context, which it must not do inside a branch: so the branch is outside.
    def across(strategy: tf.distribute.Strategy, is_good: Any, *all_gradients: Any) -> None:
      def apply_everywhere() -> tf.Tensor:
        strategy.extended.call_for_each_replica(apply, args=all_gradients)
        return tf.constant(True)

      tf.cond(strategy.experimental_local_results(is_good)[0], apply_everywhere, leave_out)

    context.merge_call(across, args=(is_good, *gradients))
    return self._optimizer.iterations


def _all_finite(gradients: Sequence[Any]) -> tf.Tensor:
  values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
  return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def _put_back(variables: Sequence[tf.Variable], before: Sequence[tf.Tensor], is_good: tf.Tensor) -> None:
  for variable, value in zip(variables, before, strict=True):
    variable.assign(tf.where(is_good, tf.identity(variable.read_value()), value))
