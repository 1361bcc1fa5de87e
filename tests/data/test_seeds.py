import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import seeds as seeds_lib


def seeds_at(positions, seed=1, stream="augment"):
  key = seeds_lib.stream_key(seed, stream)
  return seeds_lib.position_seeds(key, tf.constant(positions, tf.int64)).numpy()


def test_every_position_has_a_seed_of_its_own():
  seeds = seeds_at(np.arange(20_000))
  assert seeds.dtype == np.int32
  assert len(np.unique(seeds, axis=0)) == 20_000


def test_a_seed_is_a_function_of_position_run_seed_and_use():
  positions = np.arange(100)
  first = seeds_at(positions)
  np.testing.assert_array_equal(first, seeds_at(positions))
  np.testing.assert_array_equal(first[40:50], seeds_at(positions[40:50]))
  assert not (first == seeds_at(positions, seed=2)).all(axis=1).any()
  assert not (first == seeds_at(positions, stream="order")).all(axis=1).any()


def test_positions_beyond_32_bits_differ():
  seeds = seeds_at([5, 5 + 2**32, 5 + 2**40, 5 + 2**62])
  assert len(np.unique(seeds, axis=0)) == 4


@pytest.mark.parametrize("seed", [0, -1, 2**31 - 1, 2**63, 10**30])
def test_any_integer_is_a_run_seed(seed):
  assert 0 <= seeds_lib.stream_key(seed, "order") < 2**64


def test_seeds_are_the_same_on_every_machine():
  # A change here changes every run that anybody resumes.
  np.testing.assert_array_equal(
    seeds_at([0, 1, 10**12], seed=7),
    [[-1210344496, -739953291], [1790006293, -481706259], [-363565860, 1099061306]],
  )


def test_draws_are_the_published_sequence_of_splitmix64():
  draws = seeds_lib.draws(tf.constant([1234567], tf.uint64), 3)
  expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
  np.testing.assert_array_equal(draws, np.array([expected], np.uint64))


def test_uniform_numbers_are_spread_over_the_unit_interval():
  draws = seeds_lib.uniform(tf.constant(seeds_at(np.arange(10_000))), 3).numpy()
  assert draws.shape == (10_000, 3) and draws.dtype == np.float32
  assert draws.min() >= 0 and draws.max() < 1
  np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.02)
  np.testing.assert_allclose(np.corrcoef(draws.T), np.eye(3), atol=0.05)


def test_integers_take_each_value_about_equally_often():
  draws = seeds_lib.integers(tf.constant(seeds_at(np.arange(9_000))), 2, 3).numpy()
  assert draws.shape == (9_000, 2) and draws.dtype == np.int32
  counts = np.bincount(draws[:, 0] * 3 + draws[:, 1], minlength=9)
  assert counts.min() > 800 and counts.max() < 1200 and len(counts) == 9


def test_calls_with_another_stream_draw_other_numbers():
  seeds = tf.constant(seeds_at(np.arange(1_000)))
  first, second = (seeds_lib.uniform(seeds, 1, stream=i).numpy()[:, 0] for i in (0, 1))
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_refolded_seeds_are_new_and_distinct():
  seeds = seeds_at(np.arange(1_000))
  again = seeds_lib.refold(tf.constant(seeds)).numpy()
  assert len(np.unique(np.concatenate([seeds, again]), axis=0)) == 2_000
