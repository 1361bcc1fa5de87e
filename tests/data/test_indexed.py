import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import indexed
from official_trainer.data import seeds as seeds_lib
from official_trainer.data.arrays import ArraySource
from official_trainer.data.indexed import Anchor, IndexedInput, evaluation_dataset
from official_trainer.data.skipped import NONE_SKIPPED, SkippedBatches

NUM_EXAMPLES = 10


def numbers(size=NUM_EXAMPLES):
  return ArraySource(np.arange(size))


def noisy(size=NUM_EXAMPLES):
  return numbers(size).augment(lambda batch, seeds: (batch, seeds_lib.uniform(seeds, 2)))


def batches(
  source, num, *, start=0, batch_size=4, seed=1, shuffle=True, anchor=None, multiple=1, skipped=NONE_SKIPPED, **kwargs
):
  stream = IndexedInput(source, global_batch_size=batch_size, seed=seed, shuffle=shuffle, **kwargs)
  dataset = stream.dataset(start, anchor or Anchor.start(batch_size), multiple=multiple, skipped=skipped)
  return list(dataset.take(num))


def ids(*args, **kwargs):
  return [batch.inputs.numpy().tolist() for batch in batches(numbers(), *args, **kwargs)]


def test_without_shuffling_the_examples_come_in_order_for_ever():
  assert ids(4, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]


def test_each_epoch_has_every_example_once_also_across_batches():
  stream = np.concatenate(ids(15))
  epochs = stream.reshape(6, NUM_EXAMPLES)
  np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(NUM_EXAMPLES), [6, 1]))
  assert len(np.unique(epochs, axis=0)) == 6


def test_the_seed_decides_the_order():
  assert ids(10) == ids(10)
  assert ids(10) != ids(10, seed=2)


@pytest.mark.parametrize("start", [1, 4, 5, 6, 13])
def test_a_stream_started_later_gives_the_same_batches(start):
  whole = batches(noisy(), 20)
  for expected, batch in zip(whole[start:], batches(noisy(), 20 - start, start=start), strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, expected.inputs, batch.inputs)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_batches_do_not_depend_on_how_many_are_made_in_one_call(monkeypatch, most):
  # The function sees the whole batch: its result must not depend on the neighbours in a call.
  source = noisy().map(lambda batch: (batch[0], batch[1] / tf.reduce_sum(batch[1])))
  expected = batches(source, 20, start=3)
  monkeypatch.setattr(indexed, "_MOST_BATCHES_A_CALL", most)
  for first, second in zip(expected, batches(source, 20, start=3), strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, first.inputs, second.inputs)


@pytest.mark.parametrize("size", [NUM_EXAMPLES, 5000])
def test_a_run_starts_at_step_ten_to_the_twelve_as_well(size):
  batch = batches(numbers(size), 1, start=10**12, batch_size=64)[0].inputs.numpy()
  assert batch.shape == (64,) and batch.min() >= 0 and batch.max() < size
  again = batches(numbers(size), 2, start=10**12 - 1, batch_size=64)[1].inputs
  np.testing.assert_array_equal(batch, again)


def test_augmentation_differs_between_epochs_and_positions():
  draws = np.concatenate([batch.inputs[1].numpy() for batch in batches(noisy(), 50)])
  assert len(np.unique(draws, axis=0)) == 200


def test_another_batch_size_goes_on_with_the_next_example():
  stream = np.concatenate(ids(10, batch_size=2))
  anchor = Anchor.start(2).moved(4, 4)
  assert ids(1, start=4, batch_size=4, anchor=anchor) == [stream[8:12].tolist()]
  assert ids(1, start=5, batch_size=4, anchor=anchor) == [stream[12:16].tolist()]


def test_an_anchor_of_another_batch_size_is_refused():
  with pytest.raises(ValueError, match=r"anchor\.moved\(6, 4\)"):
    batches(numbers(), 1, start=6, anchor=Anchor.start(2))


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_replicas_do_not_change_the_examples(multiple):
  plain_batches = batches(noisy(), 5, batch_size=6)
  padded_batches = batches(noisy(), 5, batch_size=6, multiple=multiple)
  for plain, padded in zip(plain_batches, padded_batches, strict=True):
    cut = tf.nest.map_structure(lambda tensor: tensor[:6], padded.inputs)
    tf.nest.map_structure(np.testing.assert_array_equal, plain.inputs, cut)


def test_a_batch_that_does_not_divide_is_padded_with_its_last_example():
  for batch in batches(numbers(), 9, batch_size=5, multiple=4):
    assert batch.inputs.shape == [8]
    np.testing.assert_array_equal(batch.inputs[5:], np.repeat(batch.inputs[4], 3))
    np.testing.assert_array_equal(batch.mask, [1, 1, 1, 1, 1, 0, 0, 0])


def test_full_batches_have_no_mask_and_a_static_size():
  stream = IndexedInput(noisy(), global_batch_size=4, seed=1, shuffle=True)
  spec = stream.dataset(0, Anchor.start(4), multiple=2).element_spec
  assert spec.inputs == (tf.TensorSpec([4], tf.int64), tf.TensorSpec([4, 2], tf.float32))
  assert batches(noisy(), 1)[0].mask is None


def test_a_stream_of_epochs_ends_with_its_last_full_batch():
  stream = np.concatenate(ids(100, num_epochs=3))
  np.testing.assert_array_equal(np.sort(stream[:20]), np.repeat(np.arange(10), 2))
  assert len(stream) == 28
  assert ids(100, num_epochs=3, start=7) == []
  assert ids(100, num_epochs=3, start=5) == ids(100, num_epochs=3)[5:]


def test_a_compiled_loop_pulls_batches():
  stream = IndexedInput(noisy(), global_batch_size=4, seed=1, shuffle=False)
  iterator = iter(stream.dataset(0, Anchor.start(4)))

  @tf.function
  def total(num_steps):
    result = tf.constant(0, tf.int64)
    for _ in tf.range(num_steps):
      batch = next(iterator)
      result += tf.reduce_sum(batch.inputs[0])
    return result

  assert total(tf.constant(5)) == 2 * 45


def test_an_empty_source_cannot_be_trained_on():
  with pytest.raises(ValueError, match="source is empty"):
    IndexedInput(numbers(0), global_batch_size=4, seed=1, shuffle=True)


@pytest.mark.parametrize(
  ("settings", "text"),
  [
    ({"global_batch_size": 0}, "global_batch_size must be"),
    ({"num_epochs": 0}, "num_epochs must be"),
  ],
)
def test_numbers_that_make_no_sense_are_refused(settings, text):
  with pytest.raises(ValueError, match=text):
    IndexedInput(numbers(), **{"global_batch_size": 4, "seed": 1, "shuffle": True, **settings})


@pytest.mark.parametrize("multiple", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 9])
def test_evaluation_has_each_example_once_whatever_the_sizes(size, batch_size, multiple):
  dataset = evaluation_dataset(numbers(size), batch_size=batch_size, multiple=multiple, seed=1)
  padded = -(-batch_size // multiple) * multiple
  assert dataset.element_spec.inputs.shape == [padded]
  seen = []
  for batch in dataset:
    mask = np.ones(padded) if batch.mask is None else batch.mask.numpy()
    assert mask.tolist() == sorted(mask, reverse=True)
    seen += batch.inputs.numpy()[mask == 1].tolist()
    assert set(batch.inputs.numpy()) == set(batch.inputs.numpy()[mask == 1])
  assert seen == list(range(size))


def test_evaluation_has_a_mask_only_where_something_is_padded():
  def has_mask(size, batch_size, multiple):
    dataset = evaluation_dataset(numbers(size), batch_size=batch_size, multiple=multiple, seed=1)
    return next(iter(dataset)).mask is not None

  assert not has_mask(8, 4, 2)
  assert has_mask(9, 4, 2)
  assert has_mask(8, 4, 3)


def test_evaluation_augments_the_same_way_every_time():
  def draws():
    dataset = evaluation_dataset(noisy(), batch_size=4, multiple=1, seed=1)
    return [batch.inputs[1].numpy() for batch in dataset]

  for first, second in zip(draws(), draws(), strict=True):
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("start", [0, 2, 3, 5])
@pytest.mark.parametrize("most", [1, 8])
def test_batches_that_are_left_out_are_stepped_over_wherever_the_stream_starts(monkeypatch, start, most):
  monkeypatch.setattr(indexed, "_MOST_BATCHES_A_CALL", most)
  whole = batches(noisy(), 20)
  kept = [*whole[:3], *whole[5:9], *whole[12:]]
  skipped = SkippedBatches.of([(3, 5), (9, 12)])
  for expected, batch in zip(kept[start:], batches(noisy(), 15 - start, start=start, skipped=skipped), strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, expected.inputs, batch.inputs)


def test_another_batch_size_goes_on_where_a_window_was_left_out():
  # Batches of 2, of which number 2 is left out, up to step 3, which is batch 4; then batches of 4.
  skipped = SkippedBatches.of([(2, 3)])
  assert ids(3, batch_size=2, shuffle=False, skipped=skipped) == [[0, 1], [2, 3], [6, 7]]
  anchor = Anchor.start(2).moved(skipped.batch_of(3), 4)
  assert ids(2, start=3, anchor=anchor, shuffle=False, skipped=skipped) == [[8, 9, 0, 1], [2, 3, 4, 5]]


def test_a_stream_with_an_end_ends_after_the_batches_that_are_left():
  skipped = SkippedBatches.of([(1, 3)])
  assert len(batches(numbers(), 99, batch_size=2, num_epochs=2, skipped=skipped)) == 10 - 2


def test_an_evaluation_may_begin_at_any_batch_and_goes_round():
  source = ArraySource(np.arange(10))
  whole = list(evaluation_dataset(source, batch_size=4, multiple=1, seed=0))
  for first in (0, 1, 2):
    turned = evaluation_dataset(source, batch_size=4, multiple=1, seed=0, first=first)
    assert turned.element_spec == evaluation_dataset(source, batch_size=4, multiple=1, seed=0).element_spec
    for batch, expected in zip(turned, whole[first:] + whole[:first], strict=True):
      np.testing.assert_array_equal(batch.inputs, expected.inputs)
      np.testing.assert_array_equal(batch.mask, expected.mask)
