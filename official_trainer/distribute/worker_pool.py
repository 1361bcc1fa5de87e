"""Functions that run on the workers of parameter servers, a bounded number at a time."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# One that runs, and one that the worker goes on with while the first one's result is on its way.
_CALLS_A_WORKER = 2


class Call(NamedTuple):
  """One call of a function on any of the workers.

  Attributes:
    function: a concrete function.
    args: its arguments; of an iterator of `per_worker`, each worker gets its own.
  """

  function: Any
  args: Sequence[Any]


class WorkerPool:
  """The workers of a ParameterServerStrategy.

  A call whose worker is lost is run again on another one, from its beginning.
  """

  def __init__(self, strategy: tf.distribute.ParameterServerStrategy, *, serial: bool = False):
    """Connects to the workers.

    Args:
      strategy: the strategy.
      serial: whether one call at a time is made.
    """
    self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    self.num_workers = strategy._num_workers  # noqa: SLF001  # Its public resolver is None.
    self._most = 1 if serial else _CALLS_A_WORKER * self.num_workers

  def per_worker(self, build: Callable[[], tf.data.Dataset] | tf.data.Dataset) -> Any:
    """Returns a dataset of which each worker makes its own; `iter` of it gives an argument for calls."""
    return self.coordinator.create_per_worker_dataset(build)

  def results(self, calls: Iterable[Call]) -> Iterator[Any]:
    """Yields the results in the order of the calls, of which the next is taken when there is room for it.

    Whoever leaves early waits until what was begun has ended, and gets no result of it.

    Raises:
      Exception: the first error of a call. None runs any more then.
    """
    pending: collections.deque[Any] = collections.deque()
    waiting = iter(calls)
    try:
      while True:
        while len(pending) < self._most and (call := next(waiting, None)) is not None:
          pending.append(self.coordinator.schedule(call.function, args=tuple(call.args)))
        if not pending:
          return
        yield self._result(pending.popleft())
    except GeneratorExit:
      with contextlib.suppress(tf.errors.OpError):
        self.coordinator.join()
      raise

  def _result(self, remote: Any) -> Any:
    try:
      return remote.get()
    except tf.errors.CancelledError:
      self.coordinator.join()  # Raises the error because of which this one was cancelled.
      raise
    except Exception:
      with contextlib.suppress(Exception):  # The error of this call is the one to tell.
        self.coordinator.join()
      raise
