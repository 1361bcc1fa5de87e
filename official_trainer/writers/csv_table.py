"""`csv/<mode>.csv`: one table of results for each mode, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_trainer import atomic
from official_trainer.writers.base import Rows, Writer, numbers

_STEP = "step"
_SUFFIX = ".csv"


class CsvWriter(Writer):
  """Writes results as tables: runs of equal config have equal bytes.

  A row is a step; the columns are `step` and the metrics in the order in which they came up, those of one report by
  name. A metric that comes up later makes a new column, empty in the rows before: the file is then written anew, whole
  or not at all. Numbers are Python's shortest exact text of the float, also "nan", "inf" and "-inf".

  `open` writes all tables anew from the restored history, so half a line of a killed run, and rows and tables that a
  rolled back attempt wrote, are gone. Clock times never come here.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Stores the folder of the tables, which holds nothing else that ends in ".csv"."""
    self._folder = os.fspath(folder)
    self._tables: dict[str, _Table] | None = None  # None while not open.

  def open(self, step: int, rows: Rows) -> None:
    self.close()
    self._tables = {}
    for row_step, mode, metrics in rows:
      if row_step <= step:
        self._table(mode).add(row_step, metrics)
    for table in self._tables.values():
      table.rewrite()
    self._remove_others()

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    table = self._table(mode)
    if table.add(step, values):
      table.rewrite()
    else:
      table.append_last()

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    """Does nothing: what depends on the clock would make equal runs differ."""

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Does nothing: the tables hold results only."""

  def flush(self) -> None:
    """Does nothing: each line is flushed as it is written."""

  def close(self) -> None:
    tables, self._tables = self._tables or {}, None
    for table in tables.values():
      table.close()

  def _table(self, mode: str) -> _Table:
    if self._tables is None:
      raise RuntimeError(f"{self._folder} is not open. Call `open(step, rows)` before anything is written.")
    if mode not in self._tables:
      self._tables[mode] = _Table(os.path.join(self._folder, f"{mode}{_SUFFIX}"))
    return self._tables[mode]

  def _remove_others(self) -> None:
    """Removes the tables of modes that the restored history does not have."""
    if not tf.io.gfile.isdir(self._folder):
      return
    for name in tf.io.gfile.listdir(self._folder):
      if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) not in (self._tables or {}):
        tf.io.gfile.remove(os.path.join(self._folder, name))


class _Table:
  """One file. Its rows stay in memory, as the history does, to be written again with more columns."""

  def __init__(self, path: str):
    self._path = path
    self._columns: list[str] = [_STEP]
    self._rows: list[dict[str, Any]] = []
    self._file: Any = None

  def add(self, step: int, values: Mapping[str, float]) -> bool:
    """Adds a row; returns whether the file must be written anew."""
    row = {name: repr(value) for name, value in sorted(numbers(values).items())}
    new = [name for name in row if name not in self._columns]
    self._columns += new
    self._rows.append({_STEP: int(step), **row})
    return bool(new) or self._file is None

  def rewrite(self) -> None:
    """Puts the whole table in the place of the file."""
    self.close()
    atomic.write_text(self._path, self._text([dict(zip(self._columns, self._columns, strict=True)), *self._rows]))
    self._file = tf.io.gfile.GFile(self._path, "ab")

  def append_last(self) -> None:
    """Appends the row that was added last."""
    with atomic.writing(self._path):
      self._file.write(self._text(self._rows[-1:]).encode())
      self._file.flush()

  def close(self) -> None:
    file, self._file = self._file, None
    if file is not None:
      with atomic.writing(self._path):
        file.close()

  def _text(self, rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
