"""Tables of results."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.writers.csv_table import CsvWriter

ROWS = [
  (2, "train", {"b": 0.1 + 0.2, "a": 1}),
  (2, "validation", {"x": math.nan}),
  (4, "train", {"a": np.float32(0.1), "c/d": -math.inf, "b": 1e-300}),
  (6, "train", {"c/d": 2.0}),
  (6, "eval, set", {"y": math.inf}),
]
TRAIN = "step,a,b,c/d\n2,1.0,0.30000000000000004,\n4,0.10000000149011612,1e-300,-inf\n6,,,2.0\n"


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
  base = str(tmp_path) if request.param == "local" else f"ram://csv-{tmp_path.name}"
  return f"{base}/csv"


def read(folder, mode):
  with tf.io.gfile.GFile(f"{folder}/{mode}.csv", "rb") as file:
    return file.read().decode()


def write(folder, rows, *, restored=0, known=()):
  writer = CsvWriter(folder)
  writer.open(restored, list(known))
  for row in rows:
    writer.scalars(*row)
  writer.close()


def test_each_mode_has_a_table_whose_columns_grow_and_whose_floats_are_exact(folder):
  write(folder, ROWS)
  assert read(folder, "train") == TRAIN
  assert read(folder, "validation") == "step,x\n2,nan\n"
  assert read(folder, "eval, set") == "step,y\n6,inf\n"


@pytest.mark.parametrize("num_known", range(len(ROWS) + 1))
def test_after_a_restart_the_bytes_are_those_of_an_uninterrupted_run(folder, num_known):
  other = [(step, mode, {"lost": 1.0, **values}) for step, mode, values in ROWS]
  write(folder, [*ROWS[:num_known], *other[num_known:]])
  restored = ROWS[num_known - 1][0] if num_known else 0
  write(folder, ROWS[num_known:], restored=restored, known=ROWS[:num_known])
  assert read(folder, "train") == TRAIN
  assert sorted(tf.io.gfile.listdir(folder)) == ["eval, set.csv", "train.csv", "validation.csv"]


def test_tables_that_the_restored_history_does_not_have_are_removed_and_other_files_stay(folder):
  write(folder, ROWS)
  with tf.io.gfile.GFile(f"{folder}/notes.txt", "w") as file:
    file.write("mine")
  write(folder, [], restored=2, known=ROWS[:1])
  assert sorted(tf.io.gfile.listdir(folder)) == ["notes.txt", "train.csv"]


def test_half_a_line_of_a_killed_run_is_gone(folder):
  write(folder, ROWS)
  whole = read(folder, "train")
  tf.io.gfile.remove(f"{folder}/train.csv")
  with tf.io.gfile.GFile(f"{folder}/train.csv", "wb") as file:
    file.write(whole[:-3].encode())
  write(folder, ROWS[3:], restored=4, known=ROWS[:3])
  assert read(folder, "train") == TRAIN


def test_a_row_is_visible_to_readers_at_once(folder):
  writer = CsvWriter(folder)
  writer.open(0, [])
  writer.scalars(*ROWS[0])
  assert read(folder, "train") == "step,a,b\n2,1.0,0.30000000000000004\n"
  writer.scalars(4, "train", {"a": 3.0})
  assert read(folder, "train").endswith("\n4,3.0,\n")
  writer.close()


def test_tables_ignore_clocks_and_texts(folder):
  writer = CsvWriter(folder)
  writer.open(0, [])
  writer.timings(2, "train", {"steps_per_second": 1.0})
  writer.text(2, "config", "x")
  writer.close()
  assert not tf.io.gfile.exists(f"{folder}/train.csv")
