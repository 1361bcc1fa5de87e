import dataclasses
import json
import math
from datetime import datetime, timezone

import pytest

from official_trainer import crash
from official_trainer.errors import ConfigError
from official_trainer.history import Row

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def bundle(folder, step=12, num_rows=3, **values):
  rows = [Row(number, "train", {"loss": float(number)}) for number in range(num_rows)]
  return crash.describe(
    kind="error", step=step, what="ValueError: no", rows=rows, facts={"seed": 7}, model_dir=str(folder),
    now=lambda: NOW, **values,
  )  # fmt: skip


def test_a_bundle_comes_back_as_it_was_written(tmp_path):
  (tmp_path / "params.yaml").write_text("experiment: tiny\n")
  made = bundle(tmp_path, start=8, skipped=((2, 4),))
  path = made.save(str(tmp_path))
  assert path == str(tmp_path / "crashes" / "step-12.json")
  read = crash.read_bundle(str(tmp_path), 12)
  assert (read.step, read.start, read.skipped, read.what) == (12, 8, ((2, 4),), "ValueError: no")
  assert read.rows == made.rows and read.facts == {"seed": 7} and read.config == "experiment: tiny\n"
  assert read.wall_time == "2026-01-02T03:04:05+00:00"


def test_it_holds_the_error_and_where_every_thread_was(tmp_path):
  try:
    raise ValueError("no such thing")
  except ValueError as error:
    made = bundle(tmp_path, error=error)
  assert "no such thing" in made.traceback and "test_crash.py" in made.traceback
  assert "test_it_holds_the_error" in made.stacks["MainThread"]


def test_it_holds_the_last_hundred_rows_also_those_that_are_not_finite(tmp_path):
  made = bundle(tmp_path, num_rows=150)
  assert [row[0] for row in made.rows] == list(range(50, 150))
  made = crash.describe(
    kind="diverged", step=1, what="", rows=[Row(1, "train", {"loss": math.nan})], facts={}, model_dir=str(tmp_path)
  )
  path = made.save(str(tmp_path))
  assert json.loads(open(path).read())["rows"] == [[1, "train", {"loss": "nan"}]]
  assert math.isnan(crash.read_bundle(str(tmp_path), 1).rows[0][2]["loss"])


# It was that of the highest step: a run that had gone back and diverged earlier was looked into at the healed step.
def test_the_newest_is_that_which_was_written_last(tmp_path):
  assert crash.newest_bundle(str(tmp_path)) is None
  for step in (9, 100, 20):
    bundle(tmp_path, step=step).save(str(tmp_path))
  assert crash.newest_bundle(str(tmp_path)).step == 100
  dataclasses.replace(bundle(tmp_path, step=20), wall_time="2026-01-02T03:04:06+00:00").save(str(tmp_path))
  assert crash.newest_bundle(str(tmp_path)).step == 20


def test_a_bundle_that_cannot_be_read_is_a_clear_error(tmp_path):
  bundle(tmp_path).save(str(tmp_path))
  (tmp_path / "crashes" / "step-12.json").write_text('{"kind": "error"}')
  with pytest.raises(ConfigError, match="step-12.json cannot be read .* Give --replay_step instead"):
    crash.newest_bundle(str(tmp_path))
