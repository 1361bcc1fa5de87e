import json
import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.writers.jsonl import HistoryWriter, TimingsWriter

ROWS = [
  (2, "train", {"training_loss": 0.1 + 0.2, "accuracy": 0.5}),
  (4, "train", {"training_loss": float(np.float32(0.1)), "accuracy": 3}),
  (4, "validation", {"validation_loss": math.nan, "best": -math.inf, "head/ap": math.inf}),
  (6, "train", {"training_loss": 1e-300, "accuracy": 1.0}),
  (6, "validation", {"validation_loss": 2.0}),
]


@pytest.fixture(params=["local", "ram"])
def path(request, tmp_path):
  folder = str(tmp_path) if request.param == "local" else f"ram://jsonl-{tmp_path.name}"
  return f"{folder}/run/file.jsonl"


def read(path):
  with tf.io.gfile.GFile(path, "rb") as file:
    return file.read().decode()


def overwrite(path, text):
  tf.io.gfile.remove(path)  # A file of ram:// opened for writing keeps what it had.
  with tf.io.gfile.GFile(path, "wb") as file:
    file.write(text.encode())


def write_history(path, rows):
  """Writes rows as an uninterrupted run does, and returns the file."""
  writer = HistoryWriter(path)
  writer.open(0, [])
  for row in rows:
    writer.scalars(*row)
  writer.close()
  return read(path)


def test_a_line_is_the_row_with_metrics_sorted_and_floats_exact(path):
  assert write_history(path, ROWS[:3]) == (
    '{"step": 2, "mode": "train", "metrics": '
    '{"accuracy": 0.5, "training_loss": 0.30000000000000004}}\n'
    '{"step": 4, "mode": "train", "metrics": '
    '{"accuracy": 3.0, "training_loss": 0.10000000149011612}}\n'
    '{"step": 4, "mode": "validation", "metrics": '
    '{"best": "-inf", "head/ap": "inf", "validation_loss": "nan"}}\n'
  )


def test_every_float_comes_back_bit_for_bit(path):
  bits = np.random.default_rng(0).integers(0, 2**64, 2_000, dtype=np.uint64)
  values = bits.view(np.float64)
  values = values[np.isfinite(values)]
  text = write_history(path, [(1, "train", {str(i): value for i, value in enumerate(values)})])
  metrics = json.loads(text)["metrics"]
  assert np.array_equal([metrics[str(i)] for i in range(len(values))], values)


def test_equal_values_of_other_types_and_orders_give_equal_bytes(path):
  floats = write_history(path, [(2, "train", {"a": 0.5, "b": 3.0, "c": math.nan})])
  others = {"c": np.float32(math.nan), "b": np.int32(3), "a": np.float16(0.5)}
  assert write_history(path, [(np.int64(2), "train", others)]) == floats


@pytest.mark.parametrize("restored", [0, 2, 4, 6])
@pytest.mark.parametrize("cut", [0, 1, 30])
def test_after_a_restart_the_bytes_are_those_of_an_uninterrupted_run(path, restored, cut):
  """What the killed run wrote last is cut; what it wrote after the checkpoint is dropped."""
  whole = write_history(path, ROWS)
  overwrite(path, whole[: len(whole) - cut])
  known = [row for row in ROWS if row[0] <= restored]
  writer = HistoryWriter(path)
  writer.open(restored, known)
  assert read(path) == whole[: len(read(path))]
  assert read(path).count("\n") == len(known)
  for row in ROWS[len(known) :]:
    writer.scalars(*row)
  writer.close()
  assert read(path) == whole


def test_rows_beyond_the_restored_step_are_dropped(path):
  writer = HistoryWriter(path)
  writer.open(4, ROWS)
  writer.close()
  assert [json.loads(line)["step"] for line in read(path).splitlines()] == [2, 4, 4]


def test_a_row_is_visible_to_readers_at_once(path):
  writer = HistoryWriter(path)
  writer.open(0, [])
  assert read(path) == ""
  writer.scalars(*ROWS[0])
  assert json.loads(read(path))["step"] == 2
  writer.close()


def test_the_history_ignores_clocks_and_texts(path):
  writer = HistoryWriter(path)
  writer.open(0, [])
  writer.timings(2, "train", {"steps_per_second": 1.0})
  writer.text(2, "config", "x")
  writer.close()
  assert read(path) == ""


def write_timings(path, step, steps):
  writer = TimingsWriter(path, clock=lambda: 1_767_225_600.5)
  writer.open(step, [])
  for later in steps:
    writer.scalars(later, "train", {"training_loss": 1.0})
    writer.timings(later, "train", {"steps_per_second": 812, "a_secs": math.inf})
  writer.close()
  return read(path)


def test_timings_carry_their_wall_time_and_no_results(path):
  assert write_timings(path, 0, [2]) == (
    '{"step": 2, "mode": "train", "wall_time": 1767225600.5, "timings": {"a_secs": "inf", "steps_per_second": 812.0}}\n'
  )


def test_a_loop_that_was_not_timed_is_not_written(path):
  writer = TimingsWriter(path)
  writer.open(0, [])
  writer.timings(2, "train", {})
  writer.close()
  assert read(path) == ""


def test_timings_up_to_the_restored_step_are_kept_and_later_ones_dropped(path):
  first = write_timings(path, 0, [2, 4, 6, 8])
  again = write_timings(path, 4, [6])
  assert [json.loads(line)["step"] for line in again.splitlines()] == [2, 4, 6]
  assert first.startswith("".join(again.splitlines(keepends=True)[:2]))


def test_half_a_line_of_a_killed_run_vanishes_from_the_timings(path):
  whole = write_timings(path, 0, [2, 4])
  overwrite(path, whole[:-7])
  steps = [json.loads(line)["step"] for line in write_timings(path, 4, [6]).splitlines()]
  assert steps == [2, 6]


@pytest.mark.parametrize("rest", ["\0" * 50, "4\n", "[]\n", '{"step": null}\n', "\udcff\n"])
def test_whatever_a_crash_left_at_the_end_of_the_timings_is_dropped(path, rest):
  whole = write_timings(path, 0, [2])
  with tf.io.gfile.GFile(path, "ab") as file:
    file.write(rest.encode("utf-8", errors="surrogateescape"))
  assert write_timings(path, 2, []) == whole
