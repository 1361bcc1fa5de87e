import json

import pytest

from official_trainer.errors import ConfigError
from official_trainer.run_record import Recovery, RunRecord, load_record, settled_seed


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
  return str(tmp_path) if request.param == "local" else f"ram://record-{tmp_path.name}"


def test_what_is_saved_is_loaded(folder):
  RunRecord(seed=7).save(folder)
  assert load_record(folder) == RunRecord(seed=7)


def test_a_new_folder_has_no_record(folder):
  assert load_record(folder) is None
  assert load_record(None) is None


@pytest.mark.parametrize("text", ['{"seed": 1', "[]", '{"seed": 1, "recoveries": [{}]}'])
def test_a_record_that_cannot_be_read_is_an_error_and_not_a_new_run(tmp_path, text):
  (tmp_path / "run.json").write_text(text, "utf-8")
  with pytest.raises(ConfigError, match="it holds the run's seed and what it must leave out. Restore it,"):
    settled_seed(None, str(tmp_path))


def test_the_recorded_seed_is_reused(folder):
  RunRecord(seed=7).save(folder)
  assert settled_seed(None, folder) == 7
  assert settled_seed(7, folder) == 7


@pytest.mark.parametrize("seed", [0, 8])
def test_another_seed_than_the_recorded_one_is_refused(folder, seed):
  RunRecord(seed=7).save(folder)
  with pytest.raises(ConfigError, match=rf"started with seed 7, the config says {seed}\."):
    settled_seed(seed, folder)


@pytest.mark.parametrize("seed", [0, 5, 2**31 - 1])
def test_without_a_record_the_seed_of_the_config_counts(folder, seed):
  assert settled_seed(seed, folder) == seed


def test_without_a_record_and_a_seed_one_is_drawn(tmp_path):
  drawn = {settled_seed(None, str(tmp_path)) for _ in range(8)}
  assert len(drawn) == 8
  assert all(0 <= seed < 2**31 for seed in drawn)


def test_the_file_is_json_that_people_can_read(tmp_path):
  RunRecord(seed=7).save(str(tmp_path))
  assert json.loads((tmp_path / "run.json").read_text("utf-8")) == {
    "format_version": 1,
    "seed": 7,
    "steps_per_closure": None,
    "num_examples": None,
    "stopped_at": None,
    "recoveries": [],
  }
  RunRecord(seed=7, stopped_at=30).save(str(tmp_path))
  assert load_record(str(tmp_path)) == RunRecord(seed=7, stopped_at=30)


def test_recoveries_are_kept_in_order_and_come_back(tmp_path):
  first = Recovery(step=9, first=6, end=9, what="the training loss is nan")
  second = Recovery(step=12, first=14, end=15, what="2 variables are not finite: a, b")
  record = RunRecord(seed=7).recovered(first).recovered(second)
  record.save(str(tmp_path))
  assert load_record(str(tmp_path)) == record
  assert record.recoveries == (first, second) and first.window == (6, 9)
  assert str(first) == "at step 9 the training loss is nan; batches 6 to 8 were left out"
