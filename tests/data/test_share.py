import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.anchor import Anchor
from official_trainer.data.arrays import ArraySource
from official_trainer.data.indexed import IndexedInput, evaluation_dataset
from official_trainer.data.padding import pad_batches
from official_trainer.data.share import WHOLE, Share

NUM_EXAMPLES = 23


def source():
  return ArraySource(np.arange(NUM_EXAMPLES))


def joined(datasets):
  """Returns inputs and masks of each global batch, made of the hosts' parts in order."""
  return [
    tuple(np.concatenate(parts).tolist() for parts in zip(*((b.inputs, b.mask) for b in batches), strict=True))
    for batches in zip(*(dataset.as_numpy_iterator() for dataset in datasets), strict=True)
  ]


def training(share, batch_size):
  indexed = IndexedInput(source(), global_batch_size=batch_size, seed=1, shuffle=True)
  return indexed.dataset(3, Anchor.start(batch_size), multiple=4, share=share).take(9)


def evaluation(share, batch_size):
  return evaluation_dataset(source(), batch_size=batch_size, multiple=4, seed=1, share=share)


def pipeline(share, batch_size):
  dataset = tf.data.Dataset.range(NUM_EXAMPLES).batch(batch_size)
  return share.of(pad_batches(dataset, batch_size=batch_size, multiple=4))


@pytest.mark.parametrize("make", [training, evaluation, pipeline])
@pytest.mark.parametrize("num_hosts", [2, 4])
def test_the_parts_of_all_hosts_are_the_global_batches(make, num_hosts):
  shares = [Share(index, num_hosts) for index in range(num_hosts)]
  assert joined([make(share, 6) for share in shares]) == joined([make(WHOLE, 6)])


@pytest.mark.parametrize("make", [training, evaluation, pipeline])
def test_a_host_makes_its_rows_alone(make):
  assert make(Share(1, 4), 8).element_spec.inputs.shape.as_list() == [2]
