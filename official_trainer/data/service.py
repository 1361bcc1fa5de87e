"""Training data through a tf.data service: exactly where each dispatcher has one worker, else each element once.

A dispatcher with one worker that is not asked to share the work gives the elements in their order. So a source's
batches are dealt out to several such pairs, batch b to pair b modulo their number, and taken back in turn: that is the
order of a run without a service. A worker that was lost and comes back begins its stream anew, without a word.
Therefore every batch carries its number, and one that is not the expected one is an error.

A dispatcher with several workers deals out the elements as its workers ask for them (dynamic sharding): each element
once, in an order that no other run repeats. Where a worker is lost, what it had begun is lost with it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.data.anchor import Anchor
from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import IndexedInput
from official_trainer.data.local_service import LocalService
from official_trainer.data.service_address import ANSWER_SECS, dispatchers, require_answer
from official_trainer.data.source import RandomAccessSource, reads_through_python
from official_trainer.errors import ConfigError

_LOST = (
  "The tf.data service gave another batch than the next one: a data worker was lost and began anew."
  " The same command goes on from the last checkpoint."
)

EXACT = "input position: computed from the step, through a tf.data service (exact; every batch's number is checked)"
SHARED = (
  "input position: not kept exactly, since a tf.data service with several workers gives the batches in no fixed order;"
  " each batch is given once in one start, and a restart may repeat or leave out those that were under way"
)
PIPELINE_ONCE = (
  "input position: not kept, since a tf.data service gives the batches in no fixed order; each element is given once"
  " an epoch, unless a data worker is lost, and a resumed run starts the data over"
)
PIPELINE_EACH = (
  "input position: not kept, since a tf.data service gives the batches in no fixed order; without sharding each of its"
  " workers gives every element, and a resumed run starts the data over"
)


SERVED_BY_TASK = (
  "input position: not kept, since the task reads from a tf.data service, which gives the batches in no fixed order; a"
  " resumed run starts the data over"
)


def pipeline_position(params: DataConfig) -> str:
  """Says in one line what a task's own pipeline promises through the service."""
  return PIPELINE_ONCE if params.sharding else PIPELINE_EACH


class DataService:
  """The dispatchers that a run's data come from.

  Attributes:
    addresses: of the dispatchers.
    is_ordered: whether each has a single worker, so that the order of elements is kept.
  """

  def __init__(self, params: DataConfig, addresses: list[str], *, is_ordered: bool, local: LocalService | None = None):
    self._params = params
    self.addresses = addresses
    self.is_ordered = is_ordered
    self.local = local  # Kept alive as long as its data may be used.

  def distribute(self, dataset: tf.data.Dataset, address: str, *, shares_work: bool) -> tf.data.Dataset:
    """Returns a dataset whose elements are made by the workers of the dispatcher at `address`."""
    params, service = self._params, tf.data.experimental.service
    cache = None
    if params.enable_shared_tf_data_service_between_parallel_trainers:
      cache = service.CrossTrainerCache(trainer_id=params.trainer_id)
    return dataset.apply(
      service.distribute(
        service.ShardingPolicy.DYNAMIC if shares_work else service.ShardingPolicy.OFF,
        address,
        job_name=params.tf_data_service_job_name,
        cross_trainer_cache=cache,
        compression=None if self.local else "AUTO",
      )
    )


class ServedInput:
  """A source's batches, by step as those of an `IndexedInput`, made by the workers of a service."""

  def __init__(self, indexed: IndexedInput, service: DataService):
    self._indexed = indexed
    self._service = service
    self.exact = service.is_ordered
    self.position = EXACT if service.is_ordered else SHARED

  @property
  def num_examples(self) -> int:
    """Examples in one epoch."""
    return self._indexed.num_examples

  def dataset(self, start_step: int, anchor: Anchor, **options: Any) -> tf.data.Dataset:
    """Returns the batches of steps `start_step`, `start_step` + 1, ...: arguments as of `IndexedInput.dataset`."""
    service = self._service
    if not service.is_ordered:
      whole = self._indexed.dataset(start_step, anchor, **options)
      # Sharing needs it to be known that there is no end.
      endless = _leaves(whole).apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
      given = service.distribute(endless, service.addresses[0], shares_work=True)
      return given.map(functools.partial(_packed, whole.element_spec))
    stride = len(service.addresses)
    parts = []
    for offset, address in enumerate(service.addresses):
      batches = self._indexed.dataset(start_step + offset, anchor, stride=stride, **options)
      steps = tf.data.Dataset.counter(start_step + offset, stride)
      numbered = tf.data.Dataset.zip(steps, _leaves(batches))
      given = service.distribute(numbered, address, shares_work=False)
      parts.append(tf.data.Dataset.zip(steps, given).map(functools.partial(_checked, batches.element_spec)))
    if stride == 1:
      return parts[0]
    return tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(stride).repeat())


def served_pipeline(
  build: Callable[[], tf.data.Dataset], service: DataService, params: DataConfig
) -> Callable[[], tf.data.Dataset]:
  """Returns a function that makes a task's own pipeline, whose batches come from the service.

  Args:
    build: makes the pipeline: batches.
    service: where it runs.
    params: says whether workers share the work (`sharding`), and whether they give single examples.
  """

  def served() -> tf.data.Dataset:
    dataset = build()
    if params.apply_tf_data_service_before_batching:
      dataset = dataset.unbatch()
    dataset = service.distribute(dataset, service.addresses[0], shares_work=params.sharding)
    if params.apply_tf_data_service_before_batching:
      dataset = dataset.batch(params.global_batch_size, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset

  return served


def connect(params: DataConfig, path: str, *, source: RandomAccessSource | None = None) -> DataService:
  """Finds the service that the settings name, or starts one of the run's own.

  Args:
    params: the input's settings, with the service enabled.
    path: of the settings, for errors.
    source: what is read, None for a task's own pipeline.

  Raises:
    ConfigError: if nobody answers, no worker is there, or what is read cannot be read by another process.
  """
  if source is not None:
    _refuse_python(source)
  if params.tf_data_service_address is None:
    workers = params.num_tf_data_service_workers
    is_ordered = source is not None and not params.enable_shared_tf_data_service_between_parallel_trainers
    local = LocalService(num_dispatchers=workers if is_ordered else 1, num_workers=workers)
    return DataService(params, local.addresses, is_ordered=is_ordered, local=local)
  path = f"{path}.tf_data_service_address"
  addresses = dispatchers(params.tf_data_service_address, path)
  workers = [num_workers(address, path) for address in addresses]
  # Data that are shared with other trainers, or by name with other processes, are nobody's in order.
  is_ordered = source is not None and set(workers) == {1} and params.tf_data_service_job_name is None
  if len(addresses) > 1 and not is_ordered:
    raise ConfigError.of(
      path,
      f"names {len(addresses)} dispatchers, with {workers} workers. Several are for a source that is read in order:"
      " each needs one worker, and no job name. Give one address.",
    )
  return DataService(params, addresses, is_ordered=is_ordered)


def num_workers(address: str, path: str, within_secs: float = ANSWER_SECS) -> int:
  """Returns how many workers a dispatcher has: without sharding each of them gives every element.

  Raises:
    ConfigError: if that does not come out in time. TensorFlow itself would try for ever.
  """
  require_answer(address, path, within_secs=within_secs)
  found: list[int | BaseException] = []

  def count() -> None:
    service = tf.data.experimental.service
    try:
      probe = tf.data.Dataset.range(1).apply(service.distribute(service.ShardingPolicy.OFF, address))
      found.append(len(list(probe)))
    except BaseException as error:  # Handed over to the caller.
      found.append(error)

  # Nothing can interrupt the call: it is left behind if it does not end.
  thread = threading.Thread(target=count, name="tf.data service probe", daemon=True)
  thread.start()
  thread.join(within_secs)
  if not found:
    message = f"{address} accepts connections, but gave no element within {within_secs:g} s.\n"
    raise ConfigError.of(path, message + "Is it a dispatcher of a tf.data service, and does it have a worker?")
  if isinstance(found[0], BaseException):
    raise ConfigError.of(path, f"{address} is of no use: {found[0]}") from found[0]
  return found[0]


def _leaves(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the tensors of each batch: a service can send nothing else, and a mask may be None."""
  return batches.map(lambda *parts: tuple(leaf for leaf in tf.nest.flatten(parts) if leaf is not None))


def _packed(spec: Any, *leaves: tf.Tensor) -> Any:
  """Undoes `_leaves`."""
  rest = iter(leaves)
  flat = [next(rest) if isinstance(part, tf.TensorSpec) else None for part in tf.nest.flatten(spec)]
  return tf.nest.pack_sequence_as(spec, flat)


def _checked(spec: Any, expected: tf.Tensor, numbered: tuple[tf.Tensor, tuple[tf.Tensor, ...]]) -> Any:
  """Returns a batch, if it is that of the step it is wanted for."""
  step, leaves = numbered
  with tf.control_dependencies([tf.debugging.assert_equal(step, expected, _LOST)]):
    return _packed(spec, *(tf.identity(leaf) for leaf in leaves))


def _refuse_python(source: RandomAccessSource) -> None:
  """Refuses a source that calls Python: only this process has that Python."""
  if reads_through_python(source):
    raise ConfigError.of(
      "task.train_data.enable_tf_data_service",
      "the task's source reads through Python (as sets in ArrayRecord form do), which no other process can run.\n"
      "Leave it off, or raise task.train_data.cache_in_memory_mb so that the set is held in memory.",
    )
