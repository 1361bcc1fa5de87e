"""One test run over every writer: what may be written, in which order, and what is refused."""

import io
import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.writers.base import WriterGroup
from official_trainer.writers.console import Console
from official_trainer.writers.jsonl import HistoryWriter, TimingsWriter
from official_trainer.writers.tensorboard import TensorBoardWriter

VALUES = {
  "training_loss": 0.25,
  "head/boxes/ap|50": np.float32(0.1),
  "int": 3,
  "numpy_int": np.int64(7),
  "array": np.array(2.0),
  "nan": math.nan,
  "inf": math.inf,
  "minus_inf": np.float32(-math.inf),
  "tiny": 5e-324,
  "huge": 1.7e308,
}


def clock():
  return 1_767_225_600.0


def terminal_console(folder):
  console = Console(io.StringIO(), terminal=True, live=False, width=100)
  console.start(0, 10)
  return console


def all_of_them(folder):
  return WriterGroup([make(folder) for name, make in WRITERS.items() if name != "group"])


WRITERS = {
  "history": lambda folder: HistoryWriter(f"{folder}/history.jsonl"),
  "timings": lambda folder: TimingsWriter(f"{folder}/timings.jsonl", clock=clock),
  "tensorboard": lambda folder: TensorBoardWriter(folder, clock=clock),
  "console": lambda folder: Console(io.StringIO(), terminal=False),
  "terminal": terminal_console,
  "quiet": lambda folder: Console(io.StringIO(), quiet=True),
  "no_chief": lambda folder: Console(io.StringIO(), is_chief=False),
  "group": all_of_them,
}

ROWS = [(1, "train", {"training_loss": 1.0}), (1, "validation", {"validation_loss": math.nan})]


@pytest.fixture(params=WRITERS)
def make(request):
  return WRITERS[request.param]


def write_everything(writer):
  for step in (2, np.int64(3)):
    for mode in ("train", "validation"):
      writer.scalars(step, mode, VALUES | {"tensor": tf.constant(1.5)})
      writer.timings(step, mode, {})
      writer.timings(step, mode, {"steps_per_second": np.float64(812.5), "examples_per_second": 1})
  writer.text(2, "config/params", "| key | value |\n| --- | --- |\n| a | ü |")
  writer.flush()


@pytest.mark.filterwarnings("error")  # For instance NumPy's about an overflowing cast to float32.
@pytest.mark.parametrize("step, rows", [(0, []), (1, ROWS)])
def test_every_kind_of_value_is_written_without_a_warning(make, tmp_path, step, rows):
  writer = make(tmp_path)
  writer.open(step, rows)
  write_everything(writer)
  writer.close()


def test_a_run_may_be_reopened_at_an_earlier_step(make, tmp_path):
  for step, rows in [(0, []), (1, ROWS), (0, [])]:
    writer = make(tmp_path)
    writer.open(step, rows)
    write_everything(writer)
    writer.close()


def test_closing_twice_or_without_opening_is_harmless(make, tmp_path):
  make(tmp_path).close()
  writer = make(tmp_path)
  writer.open(0, [])
  writer.close()
  writer.close()


def test_the_same_works_on_a_file_system_that_is_not_local(make):
  folder = "ram://writers-contract"
  writer = make(folder)
  writer.open(1, ROWS)
  write_everything(writer)
  writer.close()


def test_flushing_before_anything_was_written_is_harmless(make, tmp_path):
  writer = make(tmp_path)
  writer.open(0, [])
  writer.flush()
  writer.close()


@pytest.mark.parametrize("name", ["history", "tensorboard", "console", "terminal", "group"])
def test_a_metric_that_is_not_a_number_is_refused_by_name(name, tmp_path):
  writer = WRITERS[name](tmp_path)
  writer.open(0, [])
  with pytest.raises(ValueError, match="metric 'per_class' must be one number"):
    writer.scalars(1, "train", {"per_class": np.ones([3])})
  writer.close()


@pytest.mark.parametrize("name", ["history", "tensorboard"])
def test_writing_before_open_says_what_to_do(name, tmp_path):
  with pytest.raises(RuntimeError, match="is not open. Call `open"):
    WRITERS[name](tmp_path).scalars(1, "train", {"loss": 1.0})
