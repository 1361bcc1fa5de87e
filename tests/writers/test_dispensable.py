import os

import pytest

from official_trainer.errors import NotWritten
from official_trainer.testing import faults
from official_trainer.writers.dispensable import Dispensable
from official_trainer.writers.jsonl import HistoryWriter


def write(writer, step):
  writer.scalars(step, "validation", {"accuracy": 0.5})
  writer.timings(step, "validation", {})
  writer.text(step, "a", "b")
  writer.flush()


def test_it_is_the_writer_it_holds(tmp_path):
  writer = Dispensable(HistoryWriter(tmp_path / "a"))
  writer.open(0, ())
  write(writer, 2)
  writer.close()
  assert (tmp_path / "a").read_text().startswith('{"step": 2')


def test_a_file_that_cannot_be_written_is_told_of_once_and_left(tmp_path):
  said = []
  writer = Dispensable(HistoryWriter(tmp_path / "a"), warn=lambda text, *values: said.append(text % values))
  writer.open(0, ())
  with faults.full_disk("a"):
    write(writer, 2)
  write(writer, 4)
  writer.close()
  assert said == [f"{tmp_path}/a could not be written: File too large. The result is complete without it."]
  assert os.path.getsize(tmp_path / "a") <= 100


def test_other_errors_are_raised(tmp_path):
  writer = Dispensable(HistoryWriter(tmp_path / "a"))
  with pytest.raises(RuntimeError, match="is not open"):
    write(writer, 2)
  assert not issubclass(RuntimeError, NotWritten)
