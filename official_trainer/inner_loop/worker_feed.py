"""Where the batches of workers under parameter servers come from."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.config import foreign
from official_trainer.data.anchor import Anchor
from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import IndexedInput, evaluation_dataset, evaluation_reader
from official_trainer.data.padding import Batch, pad_batches
from official_trainer.data.skipped import SkippedBatches
from official_trainer.data.source import RandomAccessSource, reads_through_python
from official_trainer.distribute.worker_pool import WorkerPool
from official_trainer.errors import ConfigError
from official_trainer.inner_loop import feed as feeds
from official_trainer.inner_loop.feed import Feed, SuppliedFeed
from official_trainer.task import Task

# A pipeline goes on between two calls.
_BATCHES_AHEAD = 2
_UNORDERED = "what an update sees of the others' differs from run to run"


class WorkerFeed(Feed):
  """Gives each call of a function on a worker its batches. Its datasets are those of `WorkerPool.per_worker`."""

  @property
  def trace(self) -> Hashable:
    """What `batches` has made part of the function that it was traced in: another value needs another function."""
    return None

  @abc.abstractmethod
  def batches(self, iterator: Any) -> Callable[[tf.Tensor], Any]:
    """Returns what gives, for the number of a step or evaluation batch, an iterator that begins with its batch.

    Runs on the worker, traced.

    Args:
      iterator: the worker's own iterator over a dataset that `dataset` returned.
    """

  def to_replicas(self, inputs: Any) -> Batch:
    return inputs


class Given:
  """An iterator with one element, which is made where it is asked for: a dataset costs more than most batches."""

  def __init__(self, make: Callable[[], Any]):
    self._make = make

  def __next__(self) -> Any:
    with tf.device("CPU:0"):
      return self._make()


class IndexedWorkerFeed(WorkerFeed):
  """Batches computed from the step by the worker itself: a call that is run again trains the same ones."""

  position = f"input position: computed from the step (exact); parameter servers: {_UNORDERED}"
  exact = True
  endless = True

  def __init__(
    self,
    pool: WorkerPool,
    source: RandomAccessSource,
    params: DataConfig,
    anchor: Callable[[], Anchor],
    skipped: Callable[[], SkippedBatches],
  ):
    self._source = source
    self._params = params
    self._anchor = anchor
    self._skipped = skipped
    self._tensors = pool.per_worker(_tensors_of(source))
    self._trace: tuple[int, Anchor, SkippedBatches] = (0, Anchor.start(params.global_batch_size), SkippedBatches())

  @property
  def trace(self) -> Hashable:
    return self._trace

  def dataset(self, step: int) -> Any:
    self._trace = (step, self._anchor(), self._skipped())
    return self._tensors

  def batches(self, iterator: Any) -> Callable[[tf.Tensor], Any]:
    start, anchor, skipped = self._trace
    indexed = _indexed(self._source.reading(next(iterator)), self._params)
    read = indexed.reader(start, anchor, skipped=skipped)
    return lambda step: Given(lambda: read(step - start, 1)[0])

  def inputs_spec(self) -> Any:
    return _indexed(self._source, self._params).dataset(0, Anchor.start(self._params.global_batch_size)).element_spec[0]


class _IteratorFeed(WorkerFeed):
  """Each worker has an iterator of its own, which goes on from call to call and keeps no position."""

  exact = False
  # Made by `WorkerPool.per_worker`.
  _dataset: Any

  def dataset(self, step: int) -> Any:
    del step
    return self._dataset

  def batches(self, iterator: Any) -> Callable[[tf.Tensor], Any]:
    return lambda step: iterator


class PipelineWorkerFeed(_IteratorFeed):
  """A pipeline of `tf.data` for each worker, each in an order of its own."""

  position = (
    "input position: not kept; parameter servers: each worker reads the whole set in an order of its own, and"
    f" {_UNORDERED}"
  )

  def __init__(self, pool: WorkerPool, build: Callable[[], tf.data.Dataset], *, has_masks: bool):
    """Builds the pipeline once here, to see what it gives.

    Args:
      pool: the workers.
      build: makes the dataset.
      has_masks: whether it gives `Batch`es.
    """
    self._has_masks = has_masks
    built = build()
    self.endless = feeds.is_endless(built)
    self._spec = built.element_spec

    def unseeded() -> tf.data.Dataset:
      tf.random.set_seed(None)  # Of the function being traced: else all workers would shuffle alike.
      return build().prefetch(_BATCHES_AHEAD)

    self._dataset = pool.per_worker(unseeded)

  def to_replicas(self, inputs: Any) -> Batch:
    return inputs if self._has_masks else Batch(inputs, None)

  def inputs_spec(self) -> Any:
    return self._spec.inputs if self._has_masks else None


class SuppliedWorkerFeed(_IteratorFeed):
  """A dataset that the caller made, of which each worker reads a copy."""

  position = "input position: not kept, since the dataset was supplied; each worker reads all of it"

  def __init__(self, pool: WorkerPool, dataset: Any):
    self._dataset = pool.per_worker(dataset)
    self.endless = feeds.is_endless(dataset)

  def to_replicas(self, inputs: Any) -> Batch:
    return Batch(inputs, None)


class IndexedWorkerEvaluation(WorkerFeed):
  """The batches of an evaluation by their number."""

  position = "evaluation: each example once, by the workers"
  exact = True
  endless = True  # A call reads the batches that there are.
  is_by_number = True

  def __init__(self, pool: WorkerPool, source: RandomAccessSource, batch_size: int, seed: int):
    self._source = source
    self._batch_size = batch_size
    self._seed = seed
    self._tensors = pool.per_worker(_tensors_of(source))
    self.num_batches = -(-len(source) // batch_size)

  def dataset(self, step: int = 0) -> Any:
    del step
    return self._tensors

  def batches(self, iterator: Any) -> Callable[[tf.Tensor], Any]:
    source = self._source.reading(next(iterator))
    read = evaluation_reader(source, batch_size=self._batch_size, multiple=1, seed=self._seed)
    return lambda number: Given(lambda: read(number, 1)[0])

  def inputs_spec(self) -> Any:
    dataset = evaluation_dataset(self._source, batch_size=self._batch_size, multiple=1, seed=self._seed)
    return dataset.element_spec.inputs


def train_feed(
  pool: WorkerPool,
  task: Any,
  params: Any,
  *,
  seed: int,
  anchor: Callable[[], Anchor],
  skipped: Callable[[], SkippedBatches],
) -> WorkerFeed:
  """Chooses how the workers read the training data. Arguments as those of `feed.train_feed`.

  Raises:
    ConfigError: if the batch size is missing, paths name no file, or the source can be read in this process only.
  """
  path = "task.train_data"
  if not isinstance(task, Task):
    _refuse_skipping(skipped(), path)
    return PipelineWorkerFeed(pool, lambda: feeds.build_alone(task, params), has_masks=False)
  written = foreign.read(DataConfig, params)
  params = feeds.settled(params, seed, is_training=True)
  feeds.require_files(params, path)
  feeds.require_batch_size(params, path)
  source = None if params.resume in ("skip", "none") else task.build_source(params)
  if source is not None:
    require_readable_anywhere(source, path)
    return IndexedWorkerFeed(pool, source, params, anchor, skipped)
  if params.resume == "index":
    raise ValueError(f"{path}.resume is 'index', but the task's build_source() gives no source.")
  _refuse_skipping(skipped(), path)
  if written.seed is not None:
    logging.warning("%s.seed is set: all workers shuffle alike and train on the same examples. Leave it unset.", path)
  # Each worker must shuffle for itself: without the run's seed.
  unseeded = dataclasses.replace(params, seed=written.seed)

  def build() -> tf.data.Dataset:
    return pad_batches(
      task.build_inputs(unseeded, feeds.whole_input()), batch_size=params.global_batch_size, multiple=1
    )

  return PipelineWorkerFeed(pool, build, has_masks=True)


def validation_feed(
  pool: WorkerPool, task: Any, params: Any, *, seed: int, by_number: bool, path: str = "task.validation_data"
) -> Feed:
  """Chooses how the evaluation data are read: by workers where batches have numbers, else by this process.

  Args:
    pool: the workers.
    task: our Task or one of Model Garden's.
    params: `task.validation_data`, or the settings of a named set.
    seed: the run's seed.
    by_number: whether workers may.
    path: the key of `params`.
  """
  if not isinstance(task, Task):
    return SuppliedFeed(feeds.build_alone(task, params))
  feeds.require_batch_size(params, path)
  params = feeds.settled(params, seed, is_training=False)
  feeds.require_files(params, path)
  source = task.build_source(params) if by_number else None
  if source is None:
    strategy = tf.distribute.get_strategy()
    return feeds.validation_feed(task, params, strategy=strategy, seed=seed, distribute=feeds.build_alone, path=path)
  require_readable_anywhere(source, path)
  return IndexedWorkerEvaluation(pool, source, params.global_batch_size, seed)


def require_readable_anywhere(source: RandomAccessSource, path: str) -> None:
  """Refuses a source that is read by Python code, which only the process that made it can call.

  Raises:
    ConfigError: with the key of the data.
  """
  if reads_through_python(source):
    raise ConfigError.of(
      path,
      "is read by Python code, which workers of parameter servers cannot call. Raise cache_in_memory_mb so that the set"
      " is read into memory, or set resume='none' and give the task a build_inputs() of tf.data.",
    )


def _tensors_of(source: RandomAccessSource) -> Callable[[], tf.data.Dataset]:
  # Sent to a worker once, when it makes the dataset; captured by a function they would be sent with every call.
  return lambda: tf.data.Dataset.from_tensors(source.tensors() or tf.constant(0)).repeat()


def _indexed(source: RandomAccessSource, params: DataConfig) -> IndexedInput:
  return IndexedInput(
    source, global_batch_size=params.global_batch_size, seed=int(params.seed or 0), shuffle=params.shuffle is not False
  )


def _refuse_skipping(skipped: SkippedBatches, path: str) -> None:
  if skipped.windows:
    raise ConfigError.of(f"{path}.skip_steps", "needs a source with access by index under parameter servers.")
