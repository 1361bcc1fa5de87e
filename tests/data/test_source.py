import numpy as np
import tensorflow as tf

from official_trainer.data import seeds as seeds_lib
from official_trainer.data.arrays import ArraySource

SEEDS = np.array([[1, 2], [3, 4]], np.int32)


def source():
  return ArraySource({"x": np.arange(5, dtype=np.float32), "y": np.arange(5)})


def test_map_sees_the_whole_batch_and_may_change_its_structure():
  mapped = source().map(lambda batch: (batch["x"] * 2, tf.stack([batch["y"]] * 3, axis=1)))
  doubled, tripled = mapped.read(tf.constant([4, 1], tf.int64), SEEDS)
  np.testing.assert_array_equal(doubled, [8.0, 2.0])
  np.testing.assert_array_equal(tripled, [[4, 4, 4], [1, 1, 1]])
  assert len(mapped) == 5
  assert mapped.element_spec == (
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([None, 3], tf.int64),
  )


def test_augment_gets_one_seed_for_each_example():
  augmented = source().augment(lambda batch, seeds: (batch["y"], seeds))
  _, seeds = augmented.read(tf.constant([0, 1], tf.int64), SEEDS)
  np.testing.assert_array_equal(seeds, SEEDS)
  assert augmented.element_spec[1] == tf.TensorSpec([None, 2], tf.int32)


def test_two_augmentations_do_not_draw_the_same_numbers():
  def noisy(batch, seeds):
    return {**batch, f"draw{len(batch)}": seeds_lib.uniform(seeds, 1)[:, 0]}

  batch = source().augment(noisy).augment(noisy).read(tf.constant([0, 1], tf.int64), SEEDS)
  assert (batch["draw2"].numpy() != batch["draw3"].numpy()).all()


def test_the_spec_of_a_mapped_source_reads_no_example():
  class Unreadable(ArraySource):
    def read(self, indices, seeds):
      raise AssertionError("read")

  spec = Unreadable(np.zeros([3, 2])).map(lambda x: x + 1).element_spec
  assert spec == tf.TensorSpec([None, 2], tf.float64)
