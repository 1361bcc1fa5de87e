"""What processes that train together agree on."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.distribute.cluster import CHIEF, Cluster, task_name


class Peers(abc.ABC):
  """The processes that train together. Each method is called by all of them, in the same order."""

  num: int
  index: int
  names: tuple[str, ...]
  # (bool host variable) -> bool scalar: whether it is set in any process. For cross-replica context, traced. None for a
  # process alone.
  is_set_anywhere: Callable[[tf.Variable], tf.Tensor] | None = None
  # Whether the run needs processes that may be lost.
  needs_others = True

  @property
  def name(self) -> str:
    """What people call this process, e.g. "worker 1"."""
    return self.names[self.index]

  @property
  def is_chief(self) -> bool:
    """Whether this one writes the run's folder."""
    return self.index == 0

  @abc.abstractmethod
  def gathered(self, values: Sequence[int]) -> np.ndarray:
    """Returns everybody's values, int64 [num, len(values)], by index. Runs eagerly."""

  @abc.abstractmethod
  def results(self, value: Any) -> tuple[tf.Tensor, ...]:
    """Returns what all replicas of all processes computed. Runs in cross-replica context, traced.

    Args:
      value: a per-replica value.

    Returns:
      One part for each replica in order; or, among several processes, one for all of them, joined along the first
      dimension, where there is one.

    Raises:
      TypeError: if it is a string, which processes cannot send to each other.
    """

  def from_chief(self, value: int) -> int:
    """Returns the chief's value; the others' are ignored."""
    return int(self.gathered([value])[0, 0])

  def gathered_bytes(self, mine: bytes) -> list[bytes]:
    """Returns everybody's bytes, of which all have the same number, by index."""
    padded = mine + bytes(-len(mine) % 8)
    rows = self.gathered(np.frombuffer(padded, np.int64).tolist())
    return [row.tobytes()[: len(mine)] for row in rows]

  def any(self, flag: bool) -> bool:
    """Says whether any process says so."""
    return bool(self.gathered([int(flag)]).any())


class Alone(Peers):
  """A process that trains without others."""

  num = 1
  index = 0
  names = ("this process",)
  needs_others = False

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy

  def gathered(self, values: Sequence[int]) -> np.ndarray:
    return np.asarray([values], np.int64)

  def results(self, value: Any) -> tuple[tf.Tensor, ...]:
    return tuple(self._strategy.experimental_local_results(value))


class Coordinator(Alone):
  """The process that tells workers of parameter servers what to do: it alone trains, and needs them."""

  names = (CHIEF,)
  needs_others = True


class Workers(Peers):
  """The workers of a MultiWorkerMirroredStrategy."""

  def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy):
    """Stores the strategy that joins them."""
    resolver = strategy.cluster_resolver
    jobs = {job: tuple(addresses) for job, addresses in resolver.cluster_spec().as_dict().items()}
    cluster = Cluster(jobs=jobs, task_type=resolver.task_type, task_index=resolver.task_id)
    # The chief, if there is one, is the first.
    self.names = tuple(task_name(job, i) for job, tasks in cluster.trainers.items() for i in range(len(tasks)))
    self.num = len(self.names)
    self.index = self.names.index(cluster.name)
    self._strategy = strategy
    self._eager_sum = tf.function(self._sum)

  def gathered(self, values: Sequence[int]) -> np.ndarray:
    rows = np.zeros([self.num, len(values)], np.int64)
    rows[self.index] = values
    return self._eager_sum(tf.constant(rows)).numpy()

  def is_set_anywhere(self, flag: tf.Variable) -> tf.Tensor:
    return self._sum(tf.cast(flag.read_value(), tf.int32)) > 0

  def results(self, value: Any) -> tuple[tf.Tensor, ...]:
    parts = self._strategy.experimental_local_results(value)
    if parts[0].dtype == tf.string:
      raise TypeError(
        "an evaluation step returned strings, which workers cannot send to each other: return numbers that stand for"
        " them, or hand them to the host by `Trainer.next_eval_inputs`."
      )
    if parts[0].shape.rank != 0:
      return (self._strategy.gather(value, axis=0),)
    rows = self._strategy.run(lambda part: part[tf.newaxis], args=(value,))
    return tuple(tf.unstack(self._strategy.gather(rows, axis=0), num=self._strategy.num_replicas_in_sync))

  def _sum(self, mine: tf.Tensor) -> tf.Tensor:
    """Adds up one tensor of each process."""
    num_local = self._strategy.num_replicas_in_sync // self.num

    def value_of(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
      is_first = context.replica_id_in_sync_group % num_local == 0
      return mine if is_first else tf.zeros_like(mine)

    values = self._strategy.experimental_distribute_values_from_function(value_of)
    return self._strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)


def build_peers(strategy: tf.distribute.Strategy) -> Peers:
  """Returns the processes that train together under a strategy."""
  if isinstance(strategy, tf.distribute.ParameterServerStrategy):
    return Coordinator(strategy)
  if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return Alone(strategy)
  if sum(map(len, strategy.cluster_resolver.cluster_spec().as_dict().values())) < 2:
    return Alone(strategy)
  return _workers_of(strategy)


@functools.cache
def _workers_of(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> Workers:
  # One for all that ask: each would trace what the workers send to each other anew.
  return Workers(strategy)
