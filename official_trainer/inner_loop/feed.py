"""Where a trainer's batches come from, and how they reach the replicas (foundation F1)."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.config import foreign
from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import Anchor, IndexedInput, evaluation_dataset
from official_trainer.data.padding import Batch, pad_batches
from official_trainer.data.pipeline import positioned
from official_trainer.data.service import SERVED_BY_TASK, ServedInput, connect, pipeline_position, served_pipeline
from official_trainer.data.share import Share
from official_trainer.data.skipped import SkippedBatches
from official_trainer.distribute.peers import build_peers
from official_trainer.distribute.replicas import split_batch
from official_trainer.errors import ConfigError, Problem
from official_trainer.task import Task

# Fields of DataConfig that only a task's own tf.data pipeline reads.
_PIPELINE_SETTINGS = (
  "cache",
  "cycle_length",
  "block_length",
  "ram_budget",
  "deterministic",
  "prefetch_buffer_size",
  "autotune_algorithm",
)


class Feed(abc.ABC):
  """Gives datasets that start at a step, and turns what they yield into `Batch`es for the replicas."""

  # One line for the log: whether a resumed run sees the examples that an uninterrupted one would have seen.
  position: str
  exact: bool
  # Whether the dataset made last is known to have no end.
  endless = False
  # Whether evaluation batches are read by their number, on workers.
  is_by_number = False
  # How many batches the dataset made last has, None where that is not known or there is no end.
  num_batches: int | None = None
  # How many examples an epoch of training data has, None where that is not known.
  num_examples: int | None = None
  # Whether a dataset that starts at a later step makes what comes before it first, which may take long.
  runs_forward = False

  @abc.abstractmethod
  def dataset(self, step: int) -> Any:
    """Returns the dataset whose first batch is that of the update after `step` completed ones."""

  @abc.abstractmethod
  def to_replicas(self, inputs: Any) -> Batch:
    """Splits what `next(iterator)` gave over the replicas. Runs in cross-replica context, traced."""

  def awaited(self, inputs: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes the ops of its body wait for the inputs, where the data may end.

    Ops that need no inputs, such as counters, would run at the end of the data nevertheless, and count a step that
    never was. Endless data are spared the waiting, which costs a few per cent of a small step.
    """
    leaves = [] if self.endless else tf.nest.flatten(inputs, expand_composites=True)
    return tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)])

  def inputs_spec(self) -> Any:
    """Returns the specs of the inputs of the task's steps; None where they are not known before training."""
    return None


class _GlobalFeed(Feed):
  """Global batches from one pipeline: replica r of R takes the r-th slice. A host makes those of its own replicas."""

  exact = True

  def __init__(self, strategy: tf.distribute.Strategy, num_parts: int = 1):
    self._strategy = strategy
    self._multiple = strategy.num_replicas_in_sync * num_parts
    peers = build_peers(strategy)
    self._share = Share(peers.index, peers.num)
    if peers.num > 1:
      self.position = f"{self.position}; sharded by data: each process makes its rows of every global batch"

  def to_replicas(self, inputs: Any) -> Batch:
    return split_batch(self._strategy, inputs, self._strategy.num_replicas_in_sync // self._share.num)

  def inputs_spec(self) -> Any:
    return self.dataset(0).element_spec.inputs

  def _rows_of(self, pipeline: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns this host's rows of the global batches of a training pipeline, padded where they do not divide."""
    self.endless = is_endless(pipeline)
    padded = pad_batches(pipeline, batch_size=batch_size, multiple=self._multiple)
    return self._share.of(padded)


class IndexedFeed(_GlobalFeed):
  """Batches computed from (seed, step): exact and immediate at any step."""

  endless = True

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    indexed: IndexedInput | ServedInput,
    anchor: Callable[[], Anchor],
    skipped: Callable[[], SkippedBatches],
    num_parts: int = 1,
  ):
    self.position, self.exact = indexed.position, indexed.exact
    super().__init__(strategy, num_parts)
    self.num_examples = indexed.num_examples
    self._indexed = indexed
    self._anchor = anchor
    self._skipped = skipped

  def dataset(self, step: int) -> tf.data.Dataset:
    skipped = self._skipped()
    return self._indexed.dataset(step, self._anchor(), multiple=self._multiple, skipped=skipped, share=self._share)


class SkippingFeed(_GlobalFeed):
  """A task's own tf.data pipeline, fast-forwarded by `skip`: exact when the pipeline is deterministic."""

  runs_forward = True

  position = "input position: the pipeline is skipped forward on resume (exact if it is deterministic)"

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    build: Callable[[], tf.data.Dataset],
    batch_size: int,
    skipped: Callable[[], SkippedBatches],
    num_parts: int = 1,
  ):
    super().__init__(strategy, num_parts)
    self._build = build
    self._batch_size = batch_size
    self._skipped = skipped

  def dataset(self, step: int) -> tf.data.Dataset:
    return self._rows_of(positioned(self._build, step, self._skipped()), self._batch_size)


class RestartingFeed(_GlobalFeed):
  """A task's own tf.data pipeline that starts over on resume, because the config says so."""

  position = "input position: not kept (task.train_data.resume is 'none'); a resumed run starts the data over"
  exact = False

  def __init__(
    self, strategy: tf.distribute.Strategy, build: Callable[[], tf.data.Dataset], batch_size: int, num_parts: int = 1
  ):
    super().__init__(strategy, num_parts)
    self._build = build
    self._batch_size = batch_size

  def dataset(self, step: int) -> tf.data.Dataset:
    del step
    return self._rows_of(self._build(), self._batch_size)


class EvaluationFeed(_GlobalFeed):
  """Every example of a set once, the last batch padded and masked."""

  position = "evaluation: each example once"

  def __init__(self, strategy: tf.distribute.Strategy, build: Callable[[Share, int], tf.data.Dataset]):
    """Stores its arguments.

    Args:
      strategy: the strategy in scope.
      build: (this host's share, number of a batch) -> the set from that batch on, and after its end from the first one.
    """
    super().__init__(strategy)
    self._build = build

  def dataset(self, step: int = 0) -> tf.data.Dataset:
    """Returns the set; from batch `step` of it on, which goes round, if that is not 0."""
    dataset = self._build(self._share, 0)
    cardinality = int(dataset.cardinality())
    self.num_batches = cardinality if cardinality >= 0 else None
    first = step % self.num_batches if self.num_batches else step
    return self._build(self._share, first) if first else dataset


class DistributedFeed(Feed):
  """Per-replica batches of a task that was written for Model Garden, distributed by tf.distribute."""

  runs_forward = True

  position = "input position: the pipeline is skipped forward on resume (exact if it is deterministic)"
  exact = True

  def __init__(self, distribute: Callable[[int, SkippedBatches], Any], skipped: Callable[[], SkippedBatches]):
    self._distribute = distribute
    self._skipped = skipped

  def dataset(self, step: int) -> Any:
    dataset = self._distribute(step, self._skipped())
    self.endless = is_endless(dataset)
    return dataset

  def to_replicas(self, inputs: Any) -> Batch:
    return Batch(inputs, None)


class SuppliedFeed(Feed):
  """A dataset that the caller made. It keeps no position."""

  position = "input position: not kept, since the dataset was supplied; a resumed run starts it anew"
  exact = False

  def __init__(self, dataset: Any):
    self._dataset = dataset
    self.endless = is_endless(dataset)

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
  skipped: Callable[[], SkippedBatches],
  distribute: Callable[..., Any],
  num_parts: int = 1,
) -> Feed:
  """Chooses how the training data of a task are read.

  Args:
    task: our Task or one of Model Garden's.
    params: `task.train_data`.
    strategy: the strategy in scope.
    seed: the run's seed, used where `params.seed` is unset.
    anchor: returns the anchor of the input's position.
    skipped: returns which batches are left out.
    distribute: the trainer's `distribute_dataset`, for tasks of Model Garden.
    num_parts: into how many equal parts each replica divides its share of a batch.

  Raises:
    ConfigError: if the batch size is missing, paths name no file, or the tf.data service is of no use.
  """
  if not isinstance(task, Task):
    _require_divisible(params, "task.train_data", strategy.num_replicas_in_sync, num_parts)
    if getattr(params, "enable_tf_data_service", False):  # Their readers use it themselves, in no fixed order.
      restarted = functools.partial(_distributed_from, strategy, distribute, task, params, seed)
      return _inexact(DistributedFeed(lambda *_: restarted(0, SkippedBatches()), skipped), SERVED_BY_TASK)
    return DistributedFeed(functools.partial(_distributed_from, strategy, distribute, task, params, seed), skipped)
  params = settled(params, seed, is_training=True)
  require_files(params, "task.train_data")
  source = None if params.resume in ("skip", "none") else task.build_source(params)
  if source is None:
    if params.resume == "index":
      raise ValueError("task.train_data.resume is 'index', but the task's build_source() gives no source.")
    build = functools.partial(_seeded, params.seed, task.build_inputs, params, whole_input())
    require_batch_size(params, "task.train_data")
    if params.enable_tf_data_service:
      _require_one_process(strategy)
      served = served_pipeline(build, connect(params, "task.train_data"), params)
      restarting = RestartingFeed(strategy, served, params.global_batch_size, num_parts)
      return _inexact(restarting, pipeline_position(params))
    if params.resume == "none":
      return RestartingFeed(strategy, build, params.global_batch_size, num_parts)
    return SkippingFeed(strategy, build, params.global_batch_size, skipped, num_parts)
  require_batch_size(params, "task.train_data")
  _refuse_pipeline_settings(params, "task.train_data")
  indexed = IndexedInput(
    source,
    global_batch_size=params.global_batch_size,
    seed=params.seed,
    shuffle=params.shuffle is not False,
  )
  if params.enable_tf_data_service:
    indexed = ServedInput(indexed, connect(params, "task.train_data", source=source))
    if not indexed.exact:
      _require_one_process(strategy)
  return IndexedFeed(strategy, indexed, anchor, skipped, num_parts)


def validation_feed(
  task: Any,
  params: Any,
  *,
  strategy: tf.distribute.Strategy,
  seed: int,
  distribute: Callable[..., Any],
  path: str = "task.validation_data",
) -> Feed:
  """Chooses how the data of an evaluation set of a task are read. Arguments as in `train_feed`.

  Args:
    path: the key of `params`.
  """
  if not isinstance(task, Task):
    _require_divisible(params, path, strategy.num_replicas_in_sync)
    distributed = functools.partial(_distributed_from, strategy, distribute, task, params, seed, repeats=True)
    return DistributedFeed(distributed, SkippedBatches)
  require_batch_size(params, path)
  params = settled(params, seed, is_training=False)
  if params.enable_tf_data_service:
    raise ConfigError.of(
      f"{path}.enable_tf_data_service", "must be false: an evaluation takes every example once, in order."
    )
  require_files(params, path)
  replicas = strategy.num_replicas_in_sync
  source = task.build_source(params)
  if source is not None:
    return EvaluationFeed(
      strategy,
      lambda share, first: evaluation_dataset(
        source, batch_size=params.global_batch_size, multiple=replicas, seed=seed, share=share, first=first
      ),
    )

  def pipeline(share: Share, first: int) -> tf.data.Dataset:
    batches = task.build_inputs(params, whole_input())
    dataset = share.of(pad_batches(batches, batch_size=params.global_batch_size, multiple=replicas))
    return dataset.repeat().skip(first) if first else dataset

  return EvaluationFeed(strategy, pipeline)


def settled(params: DataConfig, seed: int, *, is_training: bool) -> DataConfig:
  """Fills in what the config left open: the run's seed, and what the data are for."""
  params = foreign.read(DataConfig, params)
  return dataclasses.replace(
    params,
    seed=seed if params.seed is None else params.seed,
    is_training=is_training if params.is_training is None else params.is_training,
  )


def _refuse_pipeline_settings(params: DataConfig, path: str) -> None:
  """Names settings of `tf.data` pipelines that a source has no use for."""
  default = DataConfig()
  idle = [name for name in _PIPELINE_SETTINGS if getattr(params, name) != getattr(default, name)]
  if idle:
    logging.warning("%s: %s have no effect on a source with access by index.", path, ", ".join(idle))


def _inexact(feed: Feed, position: str) -> Feed:
  """Says of a feed that something else decides its order."""
  feed.position, feed.exact = position, False
  return feed


def _require_one_process(strategy: tf.distribute.Strategy) -> None:
  if build_peers(strategy).num > 1:
    raise ConfigError.of(
      "task.train_data.enable_tf_data_service",
      "gives batches in no fixed order, and so each of several processes that train together another global batch.\n"
      "Leave it off, or give the task a build_source(), and the service one worker for each dispatcher.",
    )


def is_endless(dataset: Any) -> bool:
  """Says whether a dataset, distributed or not, or a structure of them, is known to have no end."""
  if not isinstance(dataset, (tf.data.Dataset, tf.distribute.DistributedDataset)):
    return False
  cardinality = dataset.cardinality
  return int(cardinality() if callable(cardinality) else cardinality) == tf.data.INFINITE_CARDINALITY


def _seeded(seed: int, build: Callable[..., tf.data.Dataset], *args: Any) -> tf.data.Dataset:
  """Makes a pipeline whose operations without a seed of their own get the same ones however often it is made."""
  tf.random.set_seed(seed)
  return build(*args)


def whole_input() -> tf.distribute.InputContext:
  # One pipeline for the whole host: the per-replica size that a task asks of it is the global one.
  return tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=1)


def require_batch_size(params: Any, path: str) -> None:
  if params.global_batch_size < 1:
    raise ConfigError.of(f"{path}.global_batch_size", f"must be at least 1, got {params.global_batch_size}.")


def _require_divisible(params: Any, path: str, num_replicas: int, num_parts: int = 1) -> None:
  """Refuses what a task that divides its batches itself would fail on once training begins."""
  size = getattr(params, "global_batch_size", 0) or 0
  if size % (num_replicas * num_parts):
    parts = "" if num_parts == 1 else f" times trainer.gradient_accumulation_steps ({num_parts})"
    raise ConfigError.of(
      f"{path}.global_batch_size",
      f"must divide by the number of replicas ({num_replicas}){parts} for this task, got {size}.",
    )


def require_files(params: DataConfig, path: str) -> None:
  """Refuses paths and patterns that name no file."""
  written = params.input_path
  named = {f".{name}": paths for name, paths in written.items()} if isinstance(written, dict) else {"": written}
  problems = []
  for name, paths in named.items():
    if not isinstance(paths, (str, list, tuple)):
      continue  # Something of the task's own.
    # A name that holds a comma is no list.
    is_list = isinstance(paths, str) and not _names_a_file(paths)
    patterns = paths.split(",") if is_list else [paths] if isinstance(paths, str) else [str(item) for item in paths]
    for pattern in filter(None, (pattern.strip() for pattern in patterns)):
      if not _names_a_file(pattern):
        problems.append(Problem(f"{path}.input_path{name}", f"names no file that can be read, got {pattern!r}."))
  if problems:
    raise ConfigError(problems)


def _names_a_file(pattern: str) -> bool:
  try:
    return bool(tf.io.gfile.glob(pattern)) or tf.io.gfile.exists(pattern)
  except tf.errors.UnimplementedError:
    return True  # A scheme that TensorFlow does not know: the task may.
  except tf.errors.OpError:
    return False


def build_alone(task: Any, params: Any) -> tf.data.Dataset:
  """Returns the dataset of a task of Model Garden for one replica with an input pipeline of its own."""
  takes_context = "input_context" in inspect.signature(task.build_inputs).parameters
  return task.build_inputs(params, whole_input()) if takes_context else task.build_inputs(params)


def _distributed_from(
  strategy: tf.distribute.Strategy,
  distribute: Callable[..., Any],
  task: Any,
  params: Any,
  seed: int,
  step: int,
  skipped: SkippedBatches,
  *,
  repeats: bool = False,
) -> Any:
  if step == 0 and not skipped.windows:
    tf.random.set_seed(seed)
    return distribute(task.build_inputs, params)
  takes_context = "input_context" in inspect.signature(task.build_inputs).parameters

  def build(params: Any, input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    arguments = (params, input_context) if takes_context else (params,)
    pipelines = input_context.num_input_pipelines if input_context else 1
    once = functools.partial(_seeded, seed, task.build_inputs, *arguments)
    whole = (lambda: once().repeat()) if repeats else once
    return positioned(whole, step, skipped, strategy.num_replicas_in_sync // pipelines)

  if step:
    logging.info("Skipping the input forward to step %d.", step)
  return distribute(build, params)
