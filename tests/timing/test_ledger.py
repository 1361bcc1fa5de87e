import json
import math

import pytest

from official_trainer.timing.ledger import TimeLedger
from official_trainer.timing.phases import Phase


class Clock:
  """Seconds that pass only when the test says so. Whole numbers, whose sums are exact."""

  def __init__(self, now=1000.0):
    self.now = now

  def __call__(self):
    return self.now

  def passes(self, secs):
    self.now += secs


def spend(ledger, clock, phase, secs):
  with ledger.phase(phase):
    clock.passes(secs)


def test_d46_the_phases_sum_to_the_wall_time_with_an_inner_phase_counted_once():
  clock = Clock()
  ledger = TimeLedger(clock=clock)
  clock.passes(3)
  with ledger.phase(Phase.OTHER):
    spend(ledger, clock, Phase.COMPILE, 50)
    with ledger.phase(Phase.EVAL):
      clock.passes(7)
      spend(ledger, clock, Phase.SAVE, 2)
      clock.passes(4)
    spend(ledger, clock, Phase.TRAIN, 20)
    ledger.waited(5.0)
  clock.passes(1)
  secs = ledger.secs()
  assert secs == {
    "train": 15.0, "data_wait": 5.0, "compile": 50.0, "eval": 11.0, "save": 2.0, "restore": 0.0, "other": 4.0,
  }  # fmt: skip
  assert sum(secs.values()) == clock.now - 1000


def test_a_phase_that_raises_ends_there():
  clock = Clock()
  ledger = TimeLedger(clock=clock)
  with pytest.raises(RuntimeError), ledger.phase(Phase.TRAIN):
    clock.passes(2)
    raise RuntimeError
  clock.passes(3)
  assert (ledger.secs()["train"], ledger.secs()["other"]) == (2.0, 3.0)


def test_what_the_process_did_before_is_counted():
  clock = Clock()
  ledger = TimeLedger(clock=clock, began=clock.now - 12)
  assert ledger.secs()["other"] == 12.0


def test_waiting_never_exceeds_the_training_it_was_part_of():
  clock = Clock()
  ledger = TimeLedger(clock=clock)
  spend(ledger, clock, Phase.TRAIN, 2)
  ledger.waited(5.0)
  assert (ledger.secs()["train"], ledger.secs()["data_wait"]) == (0.0, 2.0)


def test_goodput_is_the_share_that_trained_steps_which_were_kept(tmp_path):
  clock = Clock()
  first = TimeLedger(clock=clock)
  first.begin_leg(0)
  spend(first, clock, Phase.TRAIN, 100)  # Steps 0 to 10; it is killed, and the checkpoint is that of step 8.
  first.reached(10)
  first.save(str(tmp_path))
  assert first.goodput() == 1.0
  second = TimeLedger(clock=clock)
  second.load(str(tmp_path))
  spend(second, clock, Phase.RESTORE, 20)
  second.begin_leg(8)
  spend(second, clock, Phase.TRAIN, 80)
  second.reached(16)
  assert second.secs()["train"] == 180.0
  assert second.goodput() == (80 + 80) / 200
  # It goes back to step 12.
  second.begin_leg(12)
  spend(second, clock, Phase.TRAIN, 40)
  second.reached(16)
  assert second.goodput() == (80 + 40 + 40) / 240
  second.save(str(tmp_path))
  written = json.loads((tmp_path / "time.json").read_text())
  assert [(leg["start"], leg["end"]) for leg in written["legs"]] == [(0, 10), (8, 16), (12, 16)]
  assert math.isclose(sum(written["total_secs"].values()), 240.0)
  assert written["goodput"] == second.goodput()


def test_a_start_that_never_came_to_train_is_all_loss(tmp_path):
  clock = Clock()
  ledger = TimeLedger(clock=clock)
  clock.passes(5)
  ledger.begin_leg(0)
  assert ledger.goodput() == 0.0
  assert ledger.summary() == "5.0 s: other 100%; goodput 0%"


# Values of another type were taken over, and ended the run at its first save.
@pytest.mark.parametrize(
  "text",
  [
    '{"legs": [{"start"',
    '{"legs": [{"start": 0, "end": 2, "secs": {"train": "long"}}]}',
    '{"legs": [{"start": 0, "end": 2, "secs": {"train": null}}]}',
    '{"legs": [{"start": "here", "end": 2, "secs": {}}]}',
    '{"legs": [{"start": 0, "end": 2, "secs": 3}]}',
  ],
)
def test_times_that_cannot_be_read_are_forgotten_with_a_warning(tmp_path, caplog, text):
  (tmp_path / "time.json").write_text(text)
  ledger = TimeLedger(clock=Clock())
  ledger.load(str(tmp_path))
  assert len(ledger.legs) == 1
  assert "time.json cannot be read" in caplog.text


def test_the_summary_is_one_line_for_people():
  clock = Clock()
  ledger = TimeLedger(clock=clock)
  ledger.begin_leg(0)
  spend(ledger, clock, Phase.TRAIN, 3000)
  ledger.waited(600.0)
  ledger.reached(10)
  clock.passes(1000)
  assert ledger.summary() == "1 h 6 min: train 60%, data wait 15%, other 25%; goodput 60%"
