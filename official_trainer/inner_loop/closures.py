"""Inner loops and evaluations as many small calls on the workers of parameter servers.

    train(n):    for each `steps_per_closure` steps: a worker reads their batches, does the updates, returns its sums
    evaluate(n): for each few batches: a worker evaluates them, returns its sums and the outputs of the steps

All that a call keeps for itself begins with the call and is returned by it (`distribute.own_variables`), so that one
that is run again, because its worker was lost, counts once. What it did to the weights before stays done.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from official_trainer.config.trainer import TrainerConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.own_variables import OwnVariable, OwnVariables, own_state, own_variable
from official_trainer.distribute.parameter_servers import is_asynchronous, run_here
from official_trainer.distribute.worker_pool import Call, WorkerPool
from official_trainer.inner_loop import worker_feed
from official_trainer.inner_loop.closure_size import ClosureSize
from official_trainer.inner_loop.execution import Execution, InThisProcess, LoopFn
from official_trainer.inner_loop.feed import Feed
from official_trainer.inner_loop.worker_feed import Given, SuppliedWorkerFeed, WorkerFeed
from official_trainer.metrics.compiled import has_metrics
from official_trainer.requirements import require_asynchronous
from official_trainer.stop import EvaluationStopped, StopRequest
from official_trainer.timing.data_wait import DataWait, NoDataWait

# A call may outlive a stop by as much.
_MOST_BATCHES_A_SHARD = 8


class Trained(NamedTuple):
  """What a call of training returns: the updates it was to do, those it did before the data ended, and its sums."""

  asked: tf.Tensor
  done: tf.Tensor
  sums: list[tf.Tensor]


class OnWorkers(Execution):
  """Steps run on the workers of parameter servers; Python runs in this process, the coordinator."""

  # A set of any size is evaluated by calls that are loops inside TensorFlow themselves.
  evaluates_in_graph = False
  traces_pieces = True

  def __init__(
    self,
    pool: WorkerPool,
    options: TrainerConfig,
    stop: StopRequest | None,
    *,
    iterations: tf.Variable | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Stores its arguments; runs nothing.

    Args:
      pool: the workers.
      options: the trainer config.
      stop: looked at before each call.
      iterations: the optimizer's own count of updates, or None.
      clock: returns seconds.
    """
    self._pool = pool
    self._stop = stop
    self._here = InThisProcess(options, stop, None)
    self.data_wait = NoDataWait()
    self._iterations = iterations
    self._is_serial = options.serial_closures
    self._train_sums, self._eval_sums = OwnVariables(), OwnVariables()
    self._states: list[OwnVariable] = []
    self._step = own_variable(initial_value=tf.constant(0, tf.int64), trainable=False, name="global_step")
    self._size = ClosureSize(
      options.steps_per_closure,
      most=options.steps_per_loop // (4 * pool.num_workers),
      num_workers=pool.num_workers,
      clock=clock,
    )
    self._traced: tuple[Any, Hashable, Any] | None = None

  @property
  def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
    return self._pool.coordinator

  def counter(self, make: Callable[[], tf.Variable]) -> tf.Variable:
    return self._step

  def train_sums(self) -> contextlib.AbstractContextManager[None]:
    return self._train_sums.made()

  def eval_sums(self) -> contextlib.AbstractContextManager[None]:
    return self._eval_sums.made()

  def own_generators(self, generators: list[tf.random.Generator]) -> None:
    self._states = own_state(generators)

  def train_feed(
    self, task: Any, params: Any, *, distribute: Callable[..., Any], num_parts: int = 1, **how: Any
  ) -> Feed:
    del num_parts  # Refused unless it is 1.
    return worker_feed.train_feed(self._pool, task, params, **how)

  def supplied_feed(self, dataset: Any) -> Feed:
    return SuppliedWorkerFeed(self._pool, dataset)

  def validation_feed(
    self, task: Any, params: Any, *, model: Any, seed: int, distribute: Callable[..., Any], path: str
  ) -> Feed:
    # Metrics that the model has itself are shared by all that run it.
    return worker_feed.validation_feed(self._pool, task, params, seed=seed, by_number=not has_metrics(model), path=path)

  def remember(self, steps_per_closure: int | None, note: Callable[[int], None]) -> None:
    self._size.remember(steps_per_closure, note)

  # ---- Training -----------------------------------------------------------------------------------------------------

  def train_loop(
    self, train_step: Callable[[Any], None], feed: Callable[[], Any], orbits: Callable[[], LoopFn]
  ) -> LoopFn:
    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
      first = int(self._step.numpy())
      stretch = _Stretch(first, first + int(num_steps))
      function = self._training(train_step, feed())

      def calls(size: int | None = None) -> Iterator[Call]:
        while not self._is_stopping and (piece := stretch.take(size or self._size.steps)) is not None:
          begin = self._train_sums.values() if self._is_serial else self._train_sums.zeros()
          yield Call(function, (iterator, tf.constant(piece[0], tf.int64), tf.constant(piece[1]), begin))

      def run_one(size: int) -> bool:
        return size <= stretch.left and self._train(itertools.islice(calls(size), 1), stretch) == size

      updates = 0 if self._iterations is None else int(self._iterations.numpy())
      try:
        if not self._size.is_known:
          self._size.measure(run_one)
        self._train(calls(), stretch)
      finally:
        self._count_once(updates + int(self._step.numpy()) - first)
      if stretch.data_ended:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")

    return loop

  def _train(self, calls: Iterable[Call], stretch: _Stretch) -> int:
    """Makes the calls, takes over what they return in their order, and returns the number of updates."""
    total = 0
    for result in self._pool.results(calls):
      (self._train_sums.assign if self._is_serial else self._train_sums.add)(result.sums)
      done = int(result.done)
      stretch.data_ended = stretch.data_ended or done < int(result.asked)
      self._step.assign_add(done)
      total += done
    return total

  def _count_once(self, updates: int) -> None:
    """Corrects the optimizer's count of updates: a call that was run again has done some of them twice."""
    if self._iterations is not None:
      self._iterations.assign(min(updates, int(self._iterations.numpy())))

  def _training(self, train_step: Callable[[Any], None], feed: WorkerFeed) -> Any:
    """Returns the function of a call of training, traced anew only where it would be another one."""
    if self._traced is None or self._traced[0] is not feed or self._traced[1] != feed.trace:
      self._traced = (feed, feed.trace, tf.function(functools.partial(self._train_steps, train_step, feed)))
    return self._traced[2]

  def _train_steps(
    self,
    train_step: Callable[[Any], None],
    feed: WorkerFeed,
    iterator: Any,
    first: tf.Tensor,
    num: tf.Tensor,
    begin: list[tf.Tensor],
  ) -> Trained:
    self._bind(self._train_sums, first, begin)
    batches = feed.batches(iterator)
    done = tf.constant(0)
    if feed.endless:
      while done < num:
        with tf.name_scope(""):
          # The number, and not the variable: batches are read ahead, beside the updates before theirs.
          train_step(batches(first + tf.cast(done, tf.int64)))
        done += 1
    else:
      is_there = tf.constant(True)
      while is_there and done < num:
        batch = batches(first).get_next_as_optional()
        is_there = batch.has_value()
        if is_there:
          train_step(Given(batch.get_value))
          done += 1
    return Trained(num, done, self._train_sums.values())

  # ---- Evaluation ---------------------------------------------------------------------------------------------------

  def eval_loop(self, eval_step: Callable[[Any], Any], feed: Any, orbits: Callable[[], LoopFn]) -> LoopFn:
    if not feed.is_by_number:
      return run_here(self._here.eval_loop(eval_step, feed, orbits))
    functions: dict[int, Any] = {}

    def shard_of(num: int) -> Any:
      if num not in functions:
        functions[num] = tf.function(functools.partial(self._eval_steps, eval_step, feed, num))
      return functions[num]

    def loop(iterator: Any, num_steps: tf.Tensor, state: Any = None, reduce_fn: Any = None) -> Any:
      total = feed.num_batches if int(num_steps) == -1 else min(int(num_steps), feed.num_batches)
      size = max(1, min(_MOST_BATCHES_A_SHARD, -(-total // (2 * self._pool.num_workers))))
      step = self._step.read_value()
      calls = (
        Call(shard_of(min(size, total - first)), (iterator, tf.constant(first, tf.int64), step))
        for first in range(0, total, size)
      )
      with contextlib.closing(self._pool.results(calls)) as results:
        for sums, outputs in results:
          self._eval_sums.add(sums)
          for output in outputs:
            state = None if reduce_fn is None else reduce_fn(state, output)
          if self._is_stopping:
            raise EvaluationStopped
      return state

    return loop

  def _eval_steps(
    self, eval_step: Callable[[Any], Any], feed: WorkerFeed, num: int, iterator: Any, first: tf.Tensor, step: tf.Tensor
  ) -> tuple[list[tf.Tensor], list[Any]]:
    self._bind(self._eval_sums, step, self._eval_sums.zeros())
    batches = feed.batches(iterator)
    traced_once = tf.function(lambda batch: eval_step(Given(lambda: batch)))
    outputs = [traced_once(next(batches(first + number))) for number in range(num)]
    return self._eval_sums.values(), outputs

  def _bind(self, sums: OwnVariables, step: tf.Tensor, begin: list[tf.Tensor]) -> None:
    sums.bind(begin)
    self._step.bind(step)
    for state in self._states:
      state.bind(tf.zeros(state.shape, state.dtype))  # Each step sets it.

  @property
  def _is_stopping(self) -> bool:
    return self._stop is not None and self._stop.agreed()


class _Stretch:
  """The steps of one inner loop, handed out piece by piece."""

  def __init__(self, first: int, goal: int):
    self._next = first
    self._goal = goal
    self.data_ended = False

  @property
  def left(self) -> int:
    """How many steps are not handed out yet."""
    return 0 if self.data_ended else self._goal - self._next

  def take(self, size: int) -> tuple[int, int] | None:
    """Returns the first step and the number of steps of the next piece, of `size` at most; None at the end."""
    num = min(size, self.left)
    if not num:
      return None
    self._next += num
    return self._next - num, num


def build_execution(
  strategy: tf.distribute.Strategy,
  options: TrainerConfig,
  runtime: RuntimeConfig,
  *,
  optimizer: Any,
  stop: StopRequest | None,
  data_wait: DataWait | None,
) -> Execution:
  """Returns how steps run under a strategy.

  Args:
    strategy: the strategy in scope.
    options: the trainer config.
    runtime: the runtime config.
    optimizer: the optimizer, or None.
    stop: the request to stop that is watched, or None.
    data_wait: measures the wait for data in loops of this process, or None.

  Raises:
    ConfigError: if something is asked for that the strategy's workers cannot do.
  """
  if not is_asynchronous(strategy):
    return InThisProcess(options, stop, data_wait)
  require_asynchronous(strategy, options, runtime)
  pool = WorkerPool(strategy, serial=options.serial_closures)
  return OnWorkers(pool, options, stop, iterations=None if optimizer is None else optimizer.iterations)
