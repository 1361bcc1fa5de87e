"""Where the time of a run went."""

import json

import pytest

from tests import tiny
from tests.run.test_session_recovery import poisoned


class Ticking:
  """A second passes at each look."""

  def __init__(self):
    self.now = 0

  def __call__(self):
    self.now += 1
    return float(self.now)


def test_the_phases_of_a_run_sum_to_its_wall_time_over_a_restart(tmp_path):
  clock = Ticking()
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, session={**tiny.interrupted_by(4), "clock": clock}).run()
  again = tiny.build(tmp_path, session={"clock": clock})
  again.run()
  written = json.loads((tmp_path / "time.json").read_text())
  first, second = written["legs"]
  assert (first["start"], first["end"]) == (0, 4)
  assert (second["start"], second["end"]) == (4, 6)
  for leg in written["legs"]:
    assert leg["secs"]["compile"] > 0 and leg["secs"]["save"] > 0 and leg["secs"]["restore"] > 0
  assert first["secs"]["train"] > 0 and first["secs"]["eval"] > 0
  assert sum(written["total_secs"].values()) == sum(sum(leg["secs"].values()) for leg in written["legs"])
  assert "time: " in again.said and "in 2 legs" in again.said and "goodput" in again.said


def test_a_process_that_only_evaluates_leaves_the_times_of_the_run_alone(tmp_path):
  tiny.build(tmp_path).run()
  before = (tmp_path / "time.json").read_bytes()
  tiny.build(tmp_path, mode="eval").run()
  assert (tmp_path / "time.json").read_bytes() == before


def test_the_time_up_to_an_error_is_counted(tmp_path):
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, checkpoint_interval=100, session=tiny.interrupted_by(4)).run()
  (leg,) = json.loads((tmp_path / "time.json").read_text())["legs"]
  assert (leg["start"], leg["end"]) == (0, 4)


# The time of the steps that were lost counted as that of steps which were kept.
def test_a_leg_that_diverged_ends_at_the_step_where_it_was_noticed(tmp_path):
  tiny.build(tmp_path, task_class=poisoned(4), recovery_max_trials=1, checkpoint_interval=4).run()
  first, second = json.loads((tmp_path / "time.json").read_text())["legs"]
  assert (first["start"], first["end"]) == (0, 6)
  assert (second["start"], second["end"]) == (4, 6)
