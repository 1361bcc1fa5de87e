import pytest
import tensorflow as tf

from official_trainer.data.skipped import NONE_SKIPPED, SkippedBatches


def used(skipped, num_steps):
  return [skipped.batch_of(step) for step in range(num_steps)]


def test_without_windows_each_step_uses_the_batch_of_its_number():
  assert used(NONE_SKIPPED, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
  ("windows", "expected"),
  [
    ([(3, 5)], [0, 1, 2, 5, 6, 7, 8, 9]),
    ([(0, 2)], [2, 3, 4, 5, 6, 7, 8, 9]),
    ([(1, 2), (3, 6)], [0, 2, 6, 7, 8, 9, 10, 11]),
    # In any order; those that touch or overlap are one.
    ([(4, 6), (1, 2), (2, 3), (5, 7)], [0, 3, 7, 8, 9, 10, 11, 12]),
  ],
)
def test_later_batches_move_up_over_a_window(windows, expected):
  skipped = SkippedBatches.of(windows)
  assert used(skipped, 8) == expected
  assert skipped.batches_of(tf.range(8, dtype=tf.int64)).numpy().tolist() == expected


def test_windows_that_touch_are_one():
  assert SkippedBatches.of([(4, 6), (1, 2), (2, 3), (5, 7)]).windows == ((1, 3), (4, 7))


def test_a_window_is_found_from_the_steps_that_used_it():
  first = NONE_SKIPPED.window_of(2, 4)
  assert first == (2, 4)
  # Steps 2 and 3 use batches 4 and 5 now; one after the other they leave out 2, 3, 4, 5.
  second = SkippedBatches.of([first]).window_of(2, 4)
  assert second == (4, 6)
  assert SkippedBatches.of([first]).joined([second]) == SkippedBatches.of([(2, 6)])


def test_a_window_of_steps_that_straddles_a_hole_holds_the_hole():
  assert SkippedBatches.of([(3, 5)]).window_of(2, 4) == (2, 6)


def test_the_batches_left_out_between_two_numbers_are_counted():
  skipped = SkippedBatches.of([(1, 3), (5, 8)])
  assert [skipped.num_between(0, end) for end in (1, 2, 3, 6, 9)] == [0, 1, 2, 3, 5]
  assert skipped.num_between(6, 7) == 1


@pytest.mark.parametrize("window", [(3, 3), (4, 2), (-1, 2)])
def test_an_empty_window_is_refused(window):
  with pytest.raises(ValueError, match="needs 0 <= first < end"):
    SkippedBatches.of([window])
