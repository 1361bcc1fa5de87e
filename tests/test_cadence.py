import dataclasses
import random

from official_trainer.cadence import Cadence

NUM_DRAWS = 500


def drawn(seed: int) -> Cadence:
  draw = random.Random(seed)
  return Cadence(
    train_steps=draw.randint(1, 60),
    steps_per_loop=draw.randint(1, 15),
    checkpoint_interval=draw.randint(1, 15),
    validation_interval=draw.choice([None, *range(1, 15)]),
    checkpoints_at=tuple(draw.randint(1, 70) for _ in range(draw.randint(0, 3))),
    first_loop_steps=draw.choice([None, 1, draw.randint(1, 20)]),
    evaluates_first_loop=draw.choice([False, True]),
  )


def stops(cadence: Cadence, start: int = 0) -> list[int]:
  found, step = [], start
  while step < cadence.train_steps:
    step = cadence.next_stop(step)
    found.append(step)
  return found


def due(cadence: Cadence, step: int) -> tuple[bool, bool, bool]:
  return cadence.reports(step), cadence.saves(step), cadence.evaluates(step)


def test_t42_a_run_resumed_at_any_step_stops_where_the_uninterrupted_one_does():
  for cadence in map(drawn, range(NUM_DRAWS)):
    uninterrupted = stops(cadence)
    for start in range(cadence.train_steps):
      assert stops(cadence, start) == [step for step in uninterrupted if step > start], cadence


def test_something_is_due_at_every_stop_and_nowhere_else():
  for cadence in map(drawn, range(NUM_DRAWS)):
    expected = [step for step in range(1, cadence.train_steps + 1) if any(due(cadence, step))]
    assert stops(cadence) == expected, cadence
    assert expected[-1] == cadence.train_steps


def test_everything_that_is_configured_is_due_at_the_last_step():
  for cadence in map(drawn, range(NUM_DRAWS)):
    evaluates = cadence.validation_interval is not None
    assert due(cadence, cadence.train_steps) == (True, True, evaluates), cadence


def test_saving_keeps_its_own_grid_beside_that_of_the_loops():
  cadence = Cadence(train_steps=640, steps_per_loop=64, checkpoint_interval=100)
  saved = [step for step in stops(cadence) if cadence.saves(step)]
  assert saved == [100, 200, 300, 400, 500, 600, 640]
  reported = [step for step in stops(cadence) if cadence.reports(step)]
  assert reported == list(range(64, 641, 64))


def test_intervals_that_share_no_multiple_all_get_their_exact_steps():
  cadence = Cadence(train_steps=13, steps_per_loop=2, checkpoint_interval=5)
  assert stops(cadence) == [2, 4, 5, 6, 8, 10, 12, 13]
  assert [step for step in stops(cadence) if cadence.saves(step)] == [5, 10, 13]


def test_a_run_resumed_off_the_grid_evaluates_on_the_grid():
  cadence = Cadence(train_steps=20, steps_per_loop=4, checkpoint_interval=5, validation_interval=8)
  assert [step for step in stops(cadence, 5) if cadence.evaluates(step)] == [8, 16, 20]


def test_nothing_is_evaluated_before_the_first_step_or_without_an_interval():
  cadence = Cadence(train_steps=4, steps_per_loop=2, checkpoint_interval=2, validation_interval=2)
  assert not cadence.evaluates(0)
  without = Cadence(train_steps=4, steps_per_loop=2, checkpoint_interval=2)
  assert not any(without.evaluates(step) for step in range(5))


def test_single_steps_to_save_at_are_stops_of_their_own():
  cadence = Cadence(train_steps=10, steps_per_loop=10, checkpoint_interval=10, checkpoints_at=(3, 7, 99))
  assert stops(cadence) == [3, 7, 10]
  assert [cadence.saves(step) for step in (3, 4, 7, 10)] == [True, False, True, True]
  assert not cadence.reports(3)


def test_steps_far_beyond_a_32_bit_count_are_exact():
  cadence = Cadence(train_steps=10**12 + 7, steps_per_loop=1000, checkpoint_interval=300)
  assert cadence.next_stop(10**12 - 1) == 10**12
  assert stops(cadence, 10**12) == [10**12 + 7]


def test_a_first_loop_of_its_own_length_reports_and_leaves_the_grid_as_it_is():
  cadence = Cadence(train_steps=12, steps_per_loop=4, checkpoint_interval=12, validation_interval=4, first_loop_steps=1)
  assert stops(cadence) == [1, 4, 8, 12]
  assert [due(cadence, step) for step in (1, 4)] == [(True, False, False), (True, False, True)]
  asked = dataclasses.replace(cadence, evaluates_first_loop=True)
  assert [step for step in stops(asked) if asked.evaluates(step)] == [1, 4, 8, 12]
  assert not dataclasses.replace(asked, validation_interval=None).evaluates(1)


def test_further_steps_are_stops_as_well_and_move_none_of_the_others():
  cadence = Cadence(train_steps=12, steps_per_loop=4, checkpoint_interval=100)
  assert cadence.next_stop(0, (3, 20)) == 3
  assert cadence.next_stop(3, (3, 20)) == 4
  assert cadence.next_stop(10, (20,)) == 12
