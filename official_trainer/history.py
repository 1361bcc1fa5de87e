"""What a run has reported so far: one row for each (step, mode)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Row(NamedTuple):
  """One report.

  Attributes:
    step: number of completed updates when the row was reported.
    mode: "train" or "validation".
    metrics: metric name -> value. Nested names are joined by "/".
  """

  step: int
  mode: str
  metrics: dict[str, float]


class History:
  """Rows in the order in which they were reported. Lives in the TrainState, hence in every checkpoint."""

  def __init__(self, rows: list[Row] | None = None):
    self._rows = list(rows or [])

  def __len__(self) -> int:
    return len(self._rows)

  def __iter__(self) -> Iterator[Row]:
    return iter(self._rows)

  @property
  def rows(self) -> tuple[Row, ...]:
    return tuple(self._rows)

  def append(self, step: int, mode: str, metrics: Mapping[str, float]) -> Row:
    """Adds a row and returns it.

    Args:
      step: number of completed updates; at least that of the last row of this mode.
      mode: "train" or "validation".
      metrics: metric name -> Python float.

    Raises:
      ValueError: if this (step, mode) was already reported: a run that reports twice would make its history depend on
        how often it was interrupted.
    """
    if self.find(step, mode) is not None:
      raise ValueError(f"history already holds a {mode!r} row for step {step}; a step is reported once for each mode.")
    row = Row(int(step), mode, dict(metrics))
    self._rows.append(row)
    return row

  def find(self, step: int, mode: str) -> Row | None:
    """Returns the row of this step and mode, or None."""
    for row in reversed(self._rows):
      if row.step < step:
        return None
      if row.step == step and row.mode == mode:
        return row
    return None

  def last(self, mode: str) -> Row | None:
    """Returns the newest row of this mode, or None."""
    return next((row for row in reversed(self._rows) if row.mode == mode), None)

  def series(self, mode: str, metric: str) -> list[tuple[int, float]]:
    """Returns [(step, value)] of one metric in one mode."""
    return [(row.step, row.metrics[metric]) for row in self._rows if row.mode == mode and metric in row.metrics]

  def to_json(self) -> list[Any]:
    return [[row.step, row.mode, row.metrics] for row in self._rows]

  @classmethod
  def from_json(cls, rows: list[Any]) -> History:
    return cls([Row(int(step), mode, dict(metrics)) for step, mode, metrics in rows])

  def __repr__(self) -> str:
    return f"History({json.dumps(self.to_json())})"
