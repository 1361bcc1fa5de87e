"""A tf.data pipeline made from a source, for trainers that know nothing of sources."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official_trainer.config import foreign
from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import Anchor, IndexedInput
from official_trainer.data.source import RandomAccessSource, Structure


def dataset_from_source(
  source: RandomAccessSource, params: Any, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
  """Returns the examples as `build_inputs` must: in training the same global batches as the trainer computes by step.

  Args:
    source: the examples.
    params: a DataConfig, ours or a foreign one: global_batch_size, is_training, shuffle, seed, drop_remainder.
    input_context: None for batches of the global size; else batches for each replica of this pipeline.

  Returns:
    A data set of the source's structure, without masks. Endless in training, else each example once.

  Raises:
    ValueError: in training, if the global batch size does not divide by the number of replicas.
  """
  params = foreign.read(DataConfig, params)
  context = input_context or tf.distribute.InputContext()
  batch_size = context.get_per_replica_batch_size(params.global_batch_size)
  if params.is_training:
    indexed = IndexedInput(
      source,
      global_batch_size=params.global_batch_size,
      seed=params.seed or 0,
      shuffle=params.shuffle is not False,
    )
    batches = indexed.dataset(0, Anchor.start(params.global_batch_size)).map(lambda batch: batch.inputs)
    return batches.flat_map(lambda *parts: _local_slices(_whole(parts), context, batch_size))
  indices = tf.data.Dataset.range(len(source)).shard(context.num_input_pipelines, context.input_pipeline_id)
  batches = indices.batch(batch_size, drop_remainder=False)
  return batches.map(lambda rows: source.read(rows, tf.zeros([tf.size(rows), 2], tf.int32)))


def _whole(parts: tuple[Any, ...]) -> Structure:
  # `map` has unpacked a tuple into arguments.
  return parts if len(parts) > 1 else parts[0]


def _local_slices(inputs: Structure, context: tf.distribute.InputContext, batch_size: int) -> tf.data.Dataset:
  """Returns the slices of one global batch that the replicas of this pipeline take, in their order."""
  num_local = context.num_replicas_in_sync // context.num_input_pipelines
  first = context.input_pipeline_id * num_local * batch_size

  def slices(tensor: tf.Tensor) -> tf.Tensor:
    local = tensor[first : first + num_local * batch_size]
    return tf.reshape(local, [num_local, batch_size, *tensor.shape[1:]])

  return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(slices, inputs))
