"""Gradient accumulation: one update of the gradients of several parts of a batch.

The update is that of the whole batch: each part's gradient counts by its weight (foundation F5), however many examples
of it are padding, on whichever replica. A task that does not weigh its loss (Model Garden's) gives means, and the
update is that of the mean over its parts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from official_trainer.optim.borders import key_of

_here = threading.local()


class Accumulator:
  """Stands before an optimizer's `apply_gradients`, and adds up what it is given until `apply`."""

  def __init__(self, optimizer: Any, variables: Sequence[tf.Variable], num_parts: int):
    """Takes the place of `optimizer.apply_gradients`. Call under the strategy's scope, as the last that does.

    Args:
      optimizer: a tf-keras optimizer of either API, with or without loss scaling.
      variables: those that are trained.
      num_parts: parts of a batch.
    """
    self._optimizer = optimizer
    self._apply = optimizer.apply_gradients
    self._num_parts = num_parts
    self._variables = list(variables)
    self._sums = {key_of(variable): _local_zeros(variable.shape, variable.dtype) for variable in variables}
    self._weight = _local_zeros([], tf.float32)
    self._is_weighed = False
    self._present: set[Hashable] = set()
    optimizer.apply_gradients = self._add

  @property
  def variables(self) -> list[tf.Variable]:
    """The sums, which no checkpoint holds."""
    return [*self._sums.values(), self._weight]

  @contextlib.contextmanager
  def adding(self, num_examples: tf.Tensor | int) -> Iterator[None]:
    """Lets `share_of` in the body know that the step is one of a part. Runs in replica context, traced.

    Args:
      num_examples: rows of the part, padding included: the unit of weights, so that float16 keeps its range.
    """
    _here.accumulator, _here.unit = self, tf.cast(num_examples, tf.float32)
    try:
      yield
    finally:
      _here.accumulator = None

  def begin(self) -> None:
    """Forgets what was added. Runs in replica context, traced."""
    for variable in (*self._sums.values(), self._weight):
      variable.assign(tf.zeros_like(variable))

  def apply(self) -> None:
    """Updates by what was added. Runs in replica context, traced after the parts."""
    if self._is_weighed:
      weight = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, self._weight.read_value())
      factor = tf.math.divide_no_nan(1.0, weight)
    else:
      factor = tf.constant(1.0 / self._num_parts)
    pairs = []
    for variable in self._variables:
      total = self._sums[key_of(variable)]
      is_present = key_of(variable) in self._present
      pairs.append((total.read_value() * tf.cast(factor, total.dtype) if is_present else None, variable))
    self._apply(pairs)

  def weigh(self, weight: tf.Tensor) -> tf.Tensor:
    """Notes the weight of a part's loss, and returns the factor on it."""
    self._is_weighed = True
    weight = weight / _here.unit
    self._weight.assign_add(weight)
    return weight

  def _add(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]], *args: Any, **kwargs: Any) -> Any:
    """Takes the place of `apply_gradients`. Runs in replica context, traced."""
    del args, kwargs
    for gradient, variable in grads_and_vars:
      if gradient is not None and key_of(variable) in self._sums:
        self._present.add(key_of(variable))
        # Rows of a sparse gradient are spread out: the sum of several has others.
        self._sums[key_of(variable)].assign_add(tf.convert_to_tensor(gradient))
    return self._optimizer.iterations


def share_of(weight: tf.Tensor) -> tf.Tensor | float:
  """Returns the factor on a replica's mean loss whose gradient, summed over replicas, is that of the global mean.

  Runs in replica context, traced.

  Args:
    weight: float32 scalar, the weight of this replica's loss, such as its number of examples.
  """
  accumulator = getattr(_here, "accumulator", None)
  if accumulator is not None:
    return accumulator.weigh(weight)
  context = tf.distribute.get_replica_context()
  if context.num_replicas_in_sync == 1:
    return 1.0
  return tf.math.divide_no_nan(weight, context.all_reduce(tf.distribute.ReduceOp.SUM, weight))


def _local_zeros(shape: Any, dtype: tf.DType) -> tf.Variable:
  return tf.Variable(
    tf.zeros(shape, dtype),
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.SUM,
    name="gradient_sum",
  )
