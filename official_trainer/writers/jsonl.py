"""`history.jsonl` and `timings.jsonl`: one JSON object a line."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from official_trainer import atomic
from official_trainer.writers.base import Rows, Writer, numbers


class HistoryWriter(Writer):
  """Writes results to `history.jsonl`: runs of equal config have equal bytes.

  One row a line: `{"step": 200, "mode": "train", "metrics": {"accuracy": 0.97}}`, metrics sorted
  by name, each number as Python's shortest exact text of the float. JSON has no word for what is
  not finite: those are the strings "nan", "inf" and "-inf".

  `open` writes the file anew from the restored history, so half a line of a killed run, and rows
  that a rolled back attempt wrote, are gone. Clock times never come here.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._lines = _Lines(os.fspath(path))

  def open(self, step: int, rows: Rows) -> None:
    self._lines.restart(_history_line(row_step, mode, metrics) for row_step, mode, metrics in rows if row_step <= step)

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._lines.append(_history_line(step, mode, values))

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    """Does nothing: what depends on the clock would make equal runs differ."""

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Does nothing: the file holds results only."""

  def flush(self) -> None:
    """Does nothing: each line is flushed as it is written."""

  def close(self) -> None:
    self._lines.close()


class TimingsWriter(Writer):
  """Appends speeds and durations to `timings.jsonl`, with the wall time at which they came.

  One report a line: `{"step": 200, "mode": "train", "wall_time": 1767225600.0, "timings":
  {"steps_per_second": 812.0}}`; `wall_time` is in seconds since 1970. `open` keeps what was
  measured up to the restored step; later lines, and half a line of a killed run, are dropped.
  """

  def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time):
    self._path = os.fspath(path)
    self._lines = _Lines(self._path)
    self._clock = clock

  def open(self, step: int, rows: Rows) -> None:
    self._lines.restart(line for line in self._read() if _step_of(line) <= step)

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    """Does nothing: results are in the history."""

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    if not values:
      return  # For instance the first loop: it compiles, so its speed is not measured.
    self._lines.append(
      json.dumps(
        {
          "step": int(step),
          "mode": mode,
          "wall_time": self._clock(),
          "timings": _json_numbers(values),
        },
        allow_nan=False,
      )
    )

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Does nothing: a text is not a timing."""

  def flush(self) -> None:
    """Does nothing: each line is flushed as it is written."""

  def close(self) -> None:
    self._lines.close()

  def _read(self) -> list[str]:
    if not tf.io.gfile.exists(self._path):
      return []
    with tf.io.gfile.GFile(self._path, "rb") as file:
      return file.read().decode("utf-8", errors="replace").splitlines()


class _Lines:
  """A text file that is replaced as a whole, then grows by whole lines that readers see at once."""

  def __init__(self, path: str):
    self._path = path
    self._file: Any = None

  def restart(self, lines: Iterable[str]) -> None:
    self.close()
    atomic.write_text(self._path, "".join(f"{line}\n" for line in lines))
    self._file = tf.io.gfile.GFile(self._path, "ab")

  def append(self, line: str) -> None:
    if self._file is None:
      raise RuntimeError(f"{self._path} is not open. Call `open(step, rows)` before anything is written.")
    with atomic.writing(self._path):
      self._file.write(f"{line}\n".encode())
      self._file.flush()

  def close(self) -> None:
    file, self._file = self._file, None
    if file is not None:
      with atomic.writing(self._path):
        file.close()


def _history_line(step: int, mode: str, metrics: Mapping[str, float]) -> str:
  row = {"step": int(step), "mode": mode, "metrics": _json_numbers(metrics)}
  return json.dumps(row, allow_nan=False)


def _json_numbers(values: Mapping[str, float]) -> dict[str, float | str]:
  """Returns the values as JSON can hold them, sorted by name."""
  return {name: value if math.isfinite(value) else str(value) for name, value in sorted(numbers(values).items())}


def _step_of(line: str) -> float:
  """Returns the step of a line of ours, or infinity for one that was cut off."""
  try:
    return int(json.loads(line)["step"])
  except (ValueError, TypeError, KeyError):
    return math.inf
