import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.pipeline import positioned, skip_to
from official_trainer.data.skipped import NONE_SKIPPED, SkippedBatches


def shuffled(num_steps=15):
  dataset = tf.data.Dataset.range(10).shuffle(10, seed=1).repeat().batch(2)
  return dataset.take(num_steps)


class Clock:
  """Seconds that pass by themselves, `tick` for each look at it."""

  def __init__(self, tick):
    self.now = 0.0
    self.tick = tick

  def __call__(self):
    self.now += self.tick
    return self.now


# From 9 batches on the wait is estimated, which must not change what the shuffled pipeline gives.
@pytest.mark.parametrize("steps", [0, 4, 5, 6, 9, 12, 15])
def test_a_skipped_pipeline_goes_on_like_an_uninterrupted_one(steps):
  # Step 5 is exactly the end of an epoch.
  whole = [batch.numpy().tolist() for batch in shuffled()]
  assert [batch.numpy().tolist() for batch in skip_to(shuffled, steps)] == whole[steps:]
  assert len({tuple(np.concatenate(whole[i : i + 5])) for i in (0, 5, 10)}) == 3


def test_a_long_wait_is_announced_with_its_length_and_the_remedy():
  texts = []
  skip_to(lambda: tf.data.Dataset.range(100_000), 36_000, warn=texts.append, clock=Clock(0.1))
  assert len(texts) == 1
  assert "Skipping 36000 input batches" in texts[0] and "up to 60 minutes" in texts[0]
  assert "build_source()" in texts[0] and "train_data.resume=none" in texts[0]


def test_a_short_wait_is_not_announced():
  texts = []
  skip_to(lambda: tf.data.Dataset.range(100_000), 36_000, warn=texts.append, clock=Clock(1e-5))
  assert texts == []


def test_a_slow_pipeline_is_not_timed_for_long():
  made = []

  def record(x):
    made.append(int(x))
    return x

  slow = tf.data.Dataset.range(100).map(lambda x: tf.py_function(record, [x], tf.int64))
  texts = []
  skip_to(lambda: slow, 50, warn=texts.append, clock=Clock(60.0))
  assert len(made) < 5
  assert "up to 50 minutes" in texts[0]


def test_a_pipeline_that_ends_early_can_be_skipped():
  assert list(skip_to(lambda: tf.data.Dataset.range(0), 20)) == []
  assert list(skip_to(lambda: tf.data.Dataset.range(3), 20)) == []


def test_a_pipeline_cannot_be_run_backwards():
  with pytest.raises(ValueError, match="backwards, got -1"):
    skip_to(lambda: tf.data.Dataset.range(3), -1)


@pytest.mark.parametrize("step", [0, 2, 3, 7])
def test_a_pipeline_steps_over_what_is_left_out(step):
  whole = [batch.numpy().tolist() for batch in shuffled()]
  kept = [*whole[:3], *whole[5:9], *whole[12:]]
  found = positioned(shuffled, step, SkippedBatches.of([(3, 5), (9, 12)]))
  assert [batch.numpy().tolist() for batch in found] == kept[step:]
  assert [batch.numpy().tolist() for batch in positioned(shuffled, step, NONE_SKIPPED)] == whole[step:]


def test_a_pipeline_with_an_element_for_each_replica_steps_over_all_of_a_batch():
  found = positioned(lambda: tf.data.Dataset.range(12), 1, SkippedBatches.of([(2, 4)]), elements_a_step=2)
  assert [int(number) for number in found] == [2, 3, 8, 9, 10, 11]


def test_an_endless_pipeline_is_known_to_be_endless_also_with_a_window():
  found = positioned(lambda: tf.data.Dataset.range(3).repeat(), 0, SkippedBatches.of([(1, 2)]))
  assert int(found.cardinality()) == tf.data.INFINITE_CARDINALITY
  assert [int(number) for number in found.take(4)] == [0, 2, 0, 1]
