"""Where a trainer's batches come from, and how they reach the replicas (foundation F1)."""

from __future__ import annotations

import abc
from collections.abc import Callable
import dataclasses
import functools
import inspect
from typing import Any

from absl import logging
import tensorflow as tf

from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import Anchor, IndexedInput, evaluation_dataset
from official_trainer.data.padding import Batch, pad_batches
from official_trainer.data.pipeline import skip_to
from official_trainer.distribute.replicas import split_global_batch
from official_trainer.task import Task


class Feed(abc.ABC):
  """Gives datasets that start at a step, and turns what they yield into `Batch`es for the replicas."""

  # One line for the log: whether a resumed run sees the examples that an uninterrupted one would have seen.
  position: str
  exact: bool
  # Whether the data have no end, whatever the step.
  endless = False

  @abc.abstractmethod
  def dataset(self, step: int) -> Any:
    """Returns the dataset whose first batch is that of the update after `step` completed ones."""

  @abc.abstractmethod
  def to_replicas(self, inputs: Any) -> Batch:
    """Splits what `next(iterator)` gave over the replicas. Runs in cross-replica context, traced."""


class _GlobalFeed(Feed):
  """Global batches from one host pipeline; replica r of R takes the r-th slice."""

  exact = True

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy

  def to_replicas(self, inputs: Any) -> Batch:
    return split_global_batch(self._strategy, inputs)


class IndexedFeed(_GlobalFeed):
  """Batches computed from (seed, step): exact and immediate at any step."""

  position = "input position: computed from the step (exact)"
  endless = True

  def __init__(self, strategy: tf.distribute.Strategy, indexed: IndexedInput, anchor: Callable[[], Anchor]):
    super().__init__(strategy)
    self._indexed = indexed
    self._anchor = anchor

  def dataset(self, step: int) -> tf.data.Dataset:
    return self._indexed.dataset(step, self._anchor(), multiple=self._strategy.num_replicas_in_sync)


class SkippingFeed(_GlobalFeed):
  """A task's own tf.data pipeline, fast-forwarded by `skip`: exact when the pipeline is deterministic."""

  position = "input position: the pipeline is skipped forward on resume (exact if it is deterministic)"

  def __init__(self, strategy: tf.distribute.Strategy, build: Callable[[], tf.data.Dataset], batch_size: int):
    super().__init__(strategy)
    self._build = build
    self._batch_size = batch_size

  def dataset(self, step: int) -> tf.data.Dataset:
    dataset = self._build()
    if step:
      dataset = skip_to(dataset, step)
    return pad_batches(dataset, batch_size=self._batch_size, multiple=self._strategy.num_replicas_in_sync)


class RestartingFeed(_GlobalFeed):
  """A task's own tf.data pipeline that starts over on resume, because the config says so."""

  position = "input position: not kept (task.train_data.resume is 'none'); a resumed run starts the data over"
  exact = False

  def __init__(self, strategy: tf.distribute.Strategy, build: Callable[[], tf.data.Dataset], batch_size: int):
    super().__init__(strategy)
    self._build = build
    self._batch_size = batch_size

  def dataset(self, step: int) -> tf.data.Dataset:
    del step
    return pad_batches(self._build(), batch_size=self._batch_size, multiple=self._strategy.num_replicas_in_sync)


class EvaluationFeed(_GlobalFeed):
  """Every example of a set once, the last batch padded and masked."""

  position = "evaluation: each example once"

  def __init__(self, strategy: tf.distribute.Strategy, build: Callable[[], tf.data.Dataset]):
    super().__init__(strategy)
    self._build = build

  def dataset(self, step: int = 0) -> tf.data.Dataset:
    del step
    return self._build()


class DistributedFeed(Feed):
  """Per-replica batches of a task that was written for Model Garden, distributed by tf.distribute."""

  position = "input position: the pipeline is skipped forward on resume (exact if it is deterministic)"
  exact = True

  def __init__(self, distribute: Callable[[int], Any]):
    self._distribute = distribute

  def dataset(self, step: int) -> Any:
    return self._distribute(step)

  def to_replicas(self, inputs: Any) -> Batch:
    return Batch(inputs, None)


class SuppliedFeed(Feed):
  """A dataset that the caller made. It keeps no position."""

  position = "input position: not kept, since the dataset was supplied; a resumed run starts it anew"
  exact = False

  def __init__(self, dataset: Any):
    self._dataset = dataset

  def dataset(self, step: int) -> Any:
    del step
    return self._dataset

  def to_replicas(self, inputs: Any) -> Batch:
    return Batch(inputs, None)


def train_feed(
  task: Any,
  params: Any,
  *,
  strategy: tf.distribute.Strategy,
  seed: int,
  anchor: Callable[[], Anchor],
  distribute: Callable[..., Any],
) -> Feed:
  """Chooses how the training data of a task are read.

  Args:
    task: our Task or one of Model Garden's.
    params: `task.train_data`.
    strategy: the strategy in scope.
    seed: the run's seed, used where `params.seed` is unset.
    anchor: returns the anchor of the input's position.
    distribute: the trainer's `distribute_dataset`, for tasks of Model Garden.

  Raises:
    ValueError: if the batch size is missing.
  """
  if not isinstance(task, Task):
    return DistributedFeed(functools.partial(_distributed_from, strategy, distribute, task, params))
  params = _settled(params, seed, is_training=True)
  source = None if params.resume in ("skip", "none") else task.build_source(params)
  if source is None:
    if params.resume == "index":
      raise ValueError("task.train_data.resume is 'index', but the task's build_source() gives no source.")
    build = functools.partial(task.build_inputs, params, _whole_input())
    _require_batch_size(params, "task.train_data")
    feed_cls = RestartingFeed if params.resume == "none" else SkippingFeed
    return feed_cls(strategy, build, params.global_batch_size)
  _require_batch_size(params, "task.train_data")
  indexed = IndexedInput(
    source,
    global_batch_size=params.global_batch_size,
    seed=params.seed,
    shuffle=params.shuffle is not False,
  )
  return IndexedFeed(strategy, indexed, anchor)


def validation_feed(
  task: Any,
  params: Any,
  *,
  strategy: tf.distribute.Strategy,
  seed: int,
  distribute: Callable[..., Any],
) -> Feed:
  """Chooses how the evaluation data of a task are read. Arguments as in `train_feed`."""
  if not isinstance(task, Task):
    return DistributedFeed(functools.partial(_distributed_from, strategy, distribute, task, params))
  _require_batch_size(params, "task.validation_data")
  params = _settled(params, seed, is_training=False)
  replicas = strategy.num_replicas_in_sync
  source = task.build_source(params)
  if source is not None:
    build = functools.partial(
      evaluation_dataset, source, batch_size=params.global_batch_size, multiple=replicas, seed=seed
    )
    return EvaluationFeed(strategy, build)
  return EvaluationFeed(
    strategy,
    lambda: pad_batches(
      task.build_inputs(params, _whole_input()), batch_size=params.global_batch_size, multiple=replicas
    ),
  )


def _settled(params: DataConfig, seed: int, *, is_training: bool) -> DataConfig:
  """Fills in what the config left open: the run's seed, and what the data are for."""
  return dataclasses.replace(
    params,
    seed=seed if params.seed is None else params.seed,
    is_training=is_training if params.is_training is None else params.is_training,
  )


def _whole_input() -> tf.distribute.InputContext:
  # One pipeline for the whole host: the per-replica size that a task asks of it is the global one.
  return tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=1)


def _require_batch_size(params: Any, path: str) -> None:
  if params.global_batch_size < 1:
    raise ValueError(f"{path}.global_batch_size must be at least 1, got {params.global_batch_size}.")


def _distributed_from(
  strategy: tf.distribute.Strategy, distribute: Callable[..., Any], task: Any, params: Any, step: int
) -> Any:
  if step == 0:
    return distribute(task.build_inputs, params)
  takes_context = "input_context" in inspect.signature(task.build_inputs).parameters

  def positioned(params: Any, input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    dataset = task.build_inputs(params, input_context) if takes_context else task.build_inputs(params)
    pipelines = input_context.num_input_pipelines if input_context else 1
    return skip_to(dataset, step * (strategy.num_replicas_in_sync // pipelines))

  logging.info("Skipping the training input forward to step %d.", step)
  return distribute(positioned, params)
