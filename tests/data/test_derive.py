import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import seeds as seeds_lib
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.data.derive import dataset_from_source
from official_trainer.data.indexed import Anchor, IndexedInput


def numbers(size=10):
  return ArraySource(np.arange(size))


def params(batch_size=4, is_training=True, **settings):
  return DataConfig(global_batch_size=batch_size, is_training=is_training, **settings)


def context(pipelines=1, pipeline=0, replicas=1):
  return tf.distribute.InputContext(pipelines, pipeline, replicas)


def listed(dataset, count=-1):
  return [batch.numpy().tolist() for batch in dataset.take(count)]


def indexed(source, count, *, batch_size=4, seed=0, shuffle=True):
  stream = IndexedInput(source, global_batch_size=batch_size, seed=seed, shuffle=shuffle)
  return [batch.inputs for batch in stream.dataset(0, Anchor.start(batch_size)).take(count)]


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_in_training_the_batches_are_those_computed_by_step(seed):
  expected = [batch.numpy().tolist() for batch in indexed(numbers(), 6, seed=seed or 0)]
  assert listed(dataset_from_source(numbers(), params(seed=seed)), 6) == expected


def test_training_never_ends_and_honours_the_order():
  dataset = dataset_from_source(numbers(), params(shuffle=False))
  assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY or len(listed(dataset, 100)) == 100
  assert listed(dataset, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]


def test_the_replicas_of_all_pipelines_share_each_global_batch():
  expected = [batch.numpy().tolist() for batch in indexed(numbers(), 3)]
  # Two pipelines of two replicas each: one example for each replica.
  parts = [listed(dataset_from_source(numbers(), params(), context(2, which, 4)), 6) for which in (0, 1)]
  for step, batch in enumerate(expected):
    ones = [part[2 * step + local] for part in parts for local in (0, 1)]
    assert np.concatenate(ones).tolist() == batch


def test_a_batch_that_does_not_divide_by_the_replicas_is_refused():
  with pytest.raises(ValueError, match="divisible"):
    dataset_from_source(numbers(), params(batch_size=3), context(1, 0, 2))


@pytest.mark.parametrize("pipelines", [1, 2, 3])
def test_in_evaluation_each_example_comes_once_over_all_pipelines(pipelines):
  config = params(batch_size=2 * pipelines, is_training=False)
  parts = [dataset_from_source(numbers(), config, context(pipelines, which, pipelines)) for which in range(pipelines)]
  seen = [number for part in parts for batch in listed(part) for number in batch]
  assert sorted(seen) == list(range(10))


def test_in_evaluation_the_last_batch_is_a_partial_one():
  assert listed(dataset_from_source(numbers(), params(is_training=False))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("structure", ["tuple", "dictionary", "nested"])
def test_any_structure_passes(structure):
  arrays = {
    "tuple": (np.arange(10), np.ones([10, 2], np.float32)),
    "dictionary": {"x": np.arange(10), "y": np.ones([10, 2], np.float32)},
    "nested": ({"x": np.arange(10)}, (np.ones([10, 2], np.float32), np.zeros([10]))),
  }[structure]
  source = ArraySource(arrays)
  for dataset, size in [
    (dataset_from_source(source, params()), 4),
    (dataset_from_source(source, params(), context(1, 0, 2)), 2),
    (dataset_from_source(source, params(is_training=False)), 4),
  ]:
    batch = next(iter(dataset))
    tf.nest.assert_same_structure(batch, arrays)
    assert {tensor.shape[0] for tensor in tf.nest.flatten(batch)} == {size}


def test_augmentation_is_that_of_the_trainer():
  source = numbers().augment(lambda batch, seeds: seeds_lib.uniform(seeds, 2))
  expected = [batch.numpy().tolist() for batch in indexed(source, 5)]
  assert listed(dataset_from_source(source, params()), 5) == expected
