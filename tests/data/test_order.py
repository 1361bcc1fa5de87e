import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import order
from official_trainer.data import seeds as seeds_lib

# On both sides of the size up to which an epoch is sorted.
SMALL, LARGE = 37, 3000


def orders(size, num_epochs, key=1, first_epoch=0):
  positions = tf.range(first_epoch * size, (first_epoch + num_epochs) * size, dtype=tf.int64)
  return order.shuffled(key, positions, size).numpy().reshape(num_epochs, size)


@pytest.mark.parametrize("size", [1, 2, 3, 8, SMALL, 2048, 2049, LARGE])
def test_each_epoch_is_a_permutation(size):
  for epoch in orders(size, 3):
    np.testing.assert_array_equal(np.sort(epoch), np.arange(size))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_epochs_have_different_orders(size):
  assert len(np.unique(orders(size, 5), axis=0)) == 5


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_another_key_gives_another_order(size):
  np.testing.assert_array_equal(orders(size, 1, key=5), orders(size, 1, key=5))
  assert (orders(size, 1, key=5) != orders(size, 1, key=6)).mean() > 0.9


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_any_part_of_the_stream_is_the_same_as_in_the_whole(size):
  whole = orders(size, 4).reshape(-1)
  for start, end in (
    (0, 1),
    (size - 3, size + 5),
    (size // 2, 3 * size + 2),
    (4 * size - 1, 4 * size),
  ):
    part = order.shuffled(1, tf.range(start, end, dtype=tf.int64), size).numpy()
    np.testing.assert_array_equal(part, whole[start:end])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_epochs_far_away_are_permutations_too(size):
  far = orders(size, 2, first_epoch=10**15 // size)
  for epoch in far:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(size))
  assert (far[0] != orders(size, 1)[0]).mean() > 0.9


@pytest.mark.parametrize(("size", "expected"), [(10, [1, 2, 7, 9, 6]), (3000, [694, 2538, 690, 2493, 2921])])
def test_orders_are_the_same_on_every_machine(size, expected):
  # A change here changes every run that anybody resumes.
  positions = tf.range(10**12, 10**12 + 5, dtype=tf.int64)
  key = seeds_lib.stream_key(7, "order")
  np.testing.assert_array_equal(order.shuffled(key, positions, size), expected)


@pytest.mark.parametrize("size", [2000, 60_000])
def test_neighbouring_epochs_are_unrelated(size):
  epochs = orders(size, 4).astype(np.float64)
  noise = 5 / np.sqrt(size)
  for first, second in zip(epochs, epochs[1:], strict=False):
    assert abs(np.corrcoef(first, second)[0, 1]) < noise
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < noise


def test_small_epochs_take_every_order_about_equally_often():
  counts = np.unique(orders(3, 3000), axis=0, return_counts=True)[1]
  assert len(counts) == 6 and counts.min() > 400 and counts.max() < 600
