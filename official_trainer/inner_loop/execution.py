"""Where steps run: inner loops and evaluations in this process, or on workers (`closures`)."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.config.trainer import TrainerConfig
from official_trainer.inner_loop import feed as feeds
from official_trainer.inner_loop.feed import Feed, SuppliedFeed
from official_trainer.stop import StopRequest
from official_trainer.timing.data_wait import DataWait, NoDataWait

LoopFn = Callable[..., Any]


class Execution(abc.ABC):
  """How a trainer's `train_step` and `eval_step` are run, again and again."""

  data_wait: DataWait | NoDataWait
  # Whether the whole set can be evaluated by a loop inside TensorFlow, if the config asks for one.
  evaluates_in_graph: bool
  # Whether a step is traced for several functions, each of them one piece of a loop.
  traces_pieces = False

  @abc.abstractmethod
  def counter(self, make: Callable[[], tf.Variable]) -> tf.Variable:
    """Makes the step counter, which is the number of the step in a step that runs."""

  @abc.abstractmethod
  def train_sums(self) -> contextlib.AbstractContextManager[None]:
    """Makes the variables of its body add up what all training steps add to them, such as the sums of metrics."""

  @abc.abstractmethod
  def eval_sums(self) -> contextlib.AbstractContextManager[None]:
    """Likewise for the steps of an evaluation."""

  @abc.abstractmethod
  def own_generators(self, generators: list[tf.random.Generator]) -> None:
    """Lets each step that runs have random generators for itself."""

  @abc.abstractmethod
  def train_feed(self, task: Any, params: Any, *, distribute: Callable[..., Any], **how: Any) -> Feed:
    """Chooses how the training data of a task are read. Arguments as those of `feed.train_feed`."""

  @abc.abstractmethod
  def supplied_feed(self, dataset: Any) -> Feed:
    """Returns how a training dataset that the caller made is read."""

  @abc.abstractmethod
  def validation_feed(
    self, task: Any, params: Any, *, model: Any, seed: int, distribute: Callable[..., Any], path: str
  ) -> Feed:
    """Chooses how the data of an evaluation set are read. Arguments as those of `feed.validation_feed`."""

  @abc.abstractmethod
  def train_loop(
    self, train_step: Callable[[Any], None], feed: Callable[[], Any], orbits: Callable[[], LoopFn]
  ) -> LoopFn:
    """Returns `loop(iterator, num_steps)`, which ends early when a stop is asked for.

    Args:
      train_step: one update.
      feed: returns where the batches come from at the time.
      orbits: makes Orbit's loop, which knows nothing of stops.
    """

  @abc.abstractmethod
  def eval_loop(self, eval_step: Callable[[Any], Any], feed: Any, orbits: Callable[[], LoopFn]) -> LoopFn:
    """Returns `loop(iterator, num_steps, state, reduce_fn)`; arguments as those of `train_loop`.

    One that runs in Python raises EvaluationStopped when a stop is asked for.
    """

  @property
  def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
    """What hands calls to the workers of parameter servers.

    Raises:
      RuntimeError: where steps run in this process.
    """
    name = type(tf.distribute.get_strategy()).__name__
    raise RuntimeError(
      f"there is no cluster coordinator: steps run in this process, under {name}. Parameter servers have one: set"
      " runtime.distribution_strategy to 'parameter_server' in a cluster, and ask its chief."
    )

  def remember(self, steps_per_closure: int | None, note: Callable[[int], None]) -> None:
    """Takes over a choice that was measured in an earlier start of the run; `note` is told one made in this one."""
    del steps_per_closure, note


class InThisProcess(Execution):
  """Steps run in loops of this process, one after the other, together with those of its peers."""

  def __init__(self, options: TrainerConfig, stop: StopRequest | None, data_wait: DataWait | None):
    """Stores its arguments."""
    self._options = options
    self._stop = stop
    self.data_wait = data_wait or NoDataWait()
    self.evaluates_in_graph = options.eval_tf_while_loop

  def counter(self, make: Callable[[], tf.Variable]) -> tf.Variable:
    return make()

  def train_sums(self) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()

  def eval_sums(self) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()

  def own_generators(self, generators: list[tf.random.Generator]) -> None:
    """Strategies keep one for each replica already."""

  def train_feed(self, task: Any, params: Any, *, distribute: Callable[..., Any], **how: Any) -> Feed:
    return feeds.train_feed(task, params, strategy=tf.distribute.get_strategy(), distribute=distribute, **how)

  def supplied_feed(self, dataset: Any) -> Feed:
    return SuppliedFeed(dataset)

  def validation_feed(
    self, task: Any, params: Any, *, model: Any, seed: int, distribute: Callable[..., Any], path: str
  ) -> Feed:
    del model
    strategy = tf.distribute.get_strategy()
    return feeds.validation_feed(task, params, strategy=strategy, seed=seed, distribute=distribute, path=path)

  def train_loop(
    self, train_step: Callable[[Any], None], feed: Callable[[], Any], orbits: Callable[[], LoopFn]
  ) -> LoopFn:
    del feed
    if self._stop is None:
      return orbits()
    return self._stop.watched_loop(
      train_step, in_graph=self._options.train_tf_while_loop, as_function=self._options.train_tf_function
    )

  def eval_loop(self, eval_step: Callable[[Any], Any], feed: Any, orbits: Callable[[], LoopFn]) -> LoopFn:
    del eval_step, feed
    if self._stop is None or self.evaluates_in_graph:
      return orbits()
    return self._stop.watched_evaluation(orbits())
