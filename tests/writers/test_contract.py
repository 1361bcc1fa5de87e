"""One test run over every writer: what may be written, in which order, what is refused, and what readers find."""

import csv
import io
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from official_trainer.writers.base import WriterGroup
from official_trainer.writers.config import WandbConfig
from official_trainer.writers.console import Console
from official_trainer.writers.csv_table import CsvWriter
from official_trainer.writers.dispensable import Dispensable
from official_trainer.writers.jsonl import HistoryWriter, TimingsWriter
from official_trainer.writers.tensorboard import TensorBoardWriter
from official_trainer.writers.wandb_run import WandbWriter
from tests.writers.fake_wandb import FakeWandb

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


WANDB = {}
"""Folder -> the W&B that its runs are sent to."""


def wandb_writer(folder):
  return WandbWriter(WANDB.setdefault(str(folder), FakeWandb()), folder, WandbConfig())


def all_of_them(folder):
  return WriterGroup([make(folder) for name, make in WRITERS.items() if name != "group"])


WRITERS = {
  "history": lambda folder: HistoryWriter(f"{folder}/history.jsonl"),
  "timings": lambda folder: TimingsWriter(f"{folder}/timings.jsonl", clock=clock),
  "tensorboard": lambda folder: TensorBoardWriter(folder, clock=clock),
  "csv": lambda folder: CsvWriter(f"{folder}/csv"),
  "wandb": wandb_writer,
  "dispensable": lambda folder: Dispensable(CsvWriter(f"{folder}/dispensable")),
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
  writer.hparams({"trainer.train_steps": 6, "runtime.tpu": None, "task.name": "ü", "rate": 0.5, "on": True, "of": [1]})
  for step in (2, np.int64(3)):
    for mode in ("train", "validation"):
      writer.scalars(step, mode, VALUES | {"tensor": tf.constant(1.5)})
      writer.timings(step, mode, {})
      writer.timings(step, mode, {"steps_per_second": np.float64(812.5), "examples_per_second": 1})
  writer.images(3, "train", "boxes", np.zeros([2, 4, 5, 3], np.uint8))
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


@pytest.mark.parametrize("name", ["history", "tensorboard", "csv", "wandb", "console", "terminal", "group"])
def test_a_metric_that_is_not_a_number_is_refused_by_name(name, tmp_path):
  writer = WRITERS[name](tmp_path)
  writer.open(0, [])
  with pytest.raises(ValueError, match="metric 'per_class' must be one number"):
    writer.scalars(1, "train", {"per_class": np.ones([3])})
  writer.close()


@pytest.mark.parametrize("name", ["history", "tensorboard", "csv", "wandb"])
def test_writing_before_open_says_what_to_do(name, tmp_path):
  with pytest.raises(RuntimeError, match="is not open. Call `open"):
    WRITERS[name](tmp_path).scalars(1, "train", {"loss": 1.0})


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "group"])
@pytest.mark.parametrize(
  "pictures", [np.zeros([4, 5, 3], np.uint8), np.zeros([1, 4, 5, 3]), np.zeros([1, 4, 5, 2], np.uint8)]
)
def test_pictures_of_another_kind_are_refused_by_name(name, pictures, tmp_path):
  writer = WRITERS[name](tmp_path)
  writer.open(0, [])
  with pytest.raises(ValueError, match=r"pictures 'boxes' must be uint8 \[n, height, width, 1, 3 or 4\]"):
    writer.images(1, "train", "boxes", pictures)
  writer.close()


# ---- What readers find: (mode, name) -> [(step, value)] ------------------------------------------------------------


def history_curves(folder):
  found = {}
  for line in (folder / "history.jsonl").read_text("utf-8").splitlines():
    row = json.loads(line)
    for name, value in row["metrics"].items():
      found.setdefault((row["mode"], name), []).append((row["step"], float(value)))
  return found


def csv_curves(folder):
  found = {}
  for path in sorted((folder / "csv").glob("*.csv")):
    with path.open(newline="", encoding="utf-8") as file:
      for row in csv.DictReader(file):
        step = int(row.pop("step"))
        for name, text in row.items():
          if text:
            found.setdefault((path.stem, name), []).append((step, float(text)))
  return found


def tensorboard_curves(folder):
  found = {}
  for mode in ("train", "validation"):
    reader = event_accumulator.EventAccumulator(str(folder / mode), size_guidance={event_accumulator.SCALARS: 0})
    if not (folder / mode).exists():
      continue
    for name in reader.Reload().Tags()["scalars"]:
      # A name without a point is one whose points were all dropped.
      if points := [(event.step, event.value) for event in reader.Scalars(name)]:
        found[(mode, name)] = points
  return found


def wandb_curves(folder):
  return WANDB[str(folder)].curves()


CURVES = {
  "history": history_curves,
  "tensorboard": tensorboard_curves,
  "csv": csv_curves,
  "wandb": wandb_curves,
}

# Values that a float32 holds, which is what TensorBoard keeps; `accuracy` comes up later.
RUN = [
  (2, "train", {"loss": 4.0, "head/ap": 0.5}),
  (2, "validation", {"loss": 3.0}),
  (4, "train", {"loss": math.inf, "head/ap": 0.25, "accuracy": 0.125}),
  (4, "validation", {"loss": 2.0, "accuracy": 0.75}),
  (6, "train", {"loss": 1.0, "head/ap": 0.0, "accuracy": 1.0}),
]


def curves_of(rows):
  found = {}
  for step, mode, metrics in rows:
    for name, value in metrics.items():
      found.setdefault((mode, name), []).append((step, value))
  return found


def attempt(name, folder, restored, known, rows, *, close=True):
  """Plays one attempt of a run; without `close` it ends as a crash does."""
  writer = WRITERS[name](folder)
  writer.open(restored, known)
  for row in rows:
    writer.scalars(*row)
    writer.flush()
  if close:
    writer.close()
  return writer


@pytest.mark.parametrize("name", CURVES)
def test_readers_find_every_value_at_its_step(name, tmp_path):
  attempt(name, tmp_path, 0, [], RUN)
  assert CURVES[name](tmp_path) == curves_of(RUN)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("num_known", range(1, len(RUN) + 1))
@pytest.mark.parametrize("close", [True, False])
def test_a_restart_shows_what_an_uninterrupted_run_shows(name, num_known, close, tmp_path):
  """The rows after the restored ones were written, and are written again, with other values."""
  known = RUN[:num_known]
  lost = [(step, mode, {metric: value + 100.0 for metric, value in values.items()}) for step, mode, values in RUN]
  first = attempt(name, tmp_path, 0, [], [*known, *lost[num_known:]], close=close)
  attempt(name, tmp_path, known[-1][0], known, RUN[num_known:])
  assert CURVES[name](tmp_path) == curves_of(RUN)
  first.close()


@pytest.mark.parametrize("name", CURVES)
def test_a_run_that_goes_back_shows_what_it_did_then(name, tmp_path):
  writer = attempt(name, tmp_path, 0, [], RUN, close=False)
  writer.open(2, RUN[:2])
  again = [(4, "train", {"loss": 9.0}), (4, "validation", {"loss": 8.0})]
  for row in again:
    writer.scalars(*row)
  writer.close()
  assert CURVES[name](tmp_path) == curves_of([*RUN[:2], *again])


@pytest.mark.parametrize("name", ["history", "csv", "wandb"])
def test_a_writer_that_is_added_later_shows_the_run_from_its_beginning(name, tmp_path):
  attempt(name, tmp_path, 4, RUN[:4], RUN[4:])
  assert CURVES[name](tmp_path) == curves_of(RUN)
