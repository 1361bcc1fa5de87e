import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.pipeline import skip_to


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


@pytest.mark.parametrize("steps", [0, 4, 5, 6, 15])
def test_a_skipped_pipeline_goes_on_like_an_uninterrupted_one(steps):
  # Step 5 is exactly the end of an epoch.
  whole = [batch.numpy().tolist() for batch in shuffled()]
  assert [batch.numpy().tolist() for batch in skip_to(shuffled(), steps)] == whole[steps:]
  assert len({tuple(np.concatenate(whole[i : i + 5])) for i in (0, 5, 10)}) == 3


def test_a_long_wait_is_announced_with_its_length_and_the_remedy():
  texts = []
  skip_to(tf.data.Dataset.range(100_000), 36_000, warn=texts.append, clock=Clock(0.1))
  assert len(texts) == 1
  assert "Skipping 36000 input batches" in texts[0] and "up to 60 minutes" in texts[0]
  assert "build_source()" in texts[0] and "train_data.resume=none" in texts[0]


def test_a_short_wait_is_not_announced():
  texts = []
  skip_to(tf.data.Dataset.range(100_000), 36_000, warn=texts.append, clock=Clock(1e-5))
  assert texts == []


def test_a_slow_pipeline_is_not_timed_for_long():
  made = []

  def record(x):
    made.append(int(x))
    return x

  slow = tf.data.Dataset.range(100).map(lambda x: tf.py_function(record, [x], tf.int64))
  texts = []
  skip_to(slow, 50, warn=texts.append, clock=Clock(60.0))
  assert len(made) < 5
  assert "up to 50 minutes" in texts[0]


def test_a_pipeline_that_ends_early_can_be_skipped():
  assert list(skip_to(tf.data.Dataset.range(0), 20)) == []
  assert list(skip_to(tf.data.Dataset.range(3), 20)) == []


def test_a_pipeline_cannot_be_run_backwards():
  with pytest.raises(ValueError, match="backwards, got -1"):
    skip_to(tf.data.Dataset.range(3), -1)
