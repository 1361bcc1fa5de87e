"""What a run has reported so far: one row for each (step, mode)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from official_trainer.config.comparison import Comparison
from official_trainer.config.comparison import comparison as resolved_comparison

TRAIN = "train"
VALIDATION = "validation"


class Row(NamedTuple):
  """One report.

  Attributes:
    step: number of completed updates when the row was reported.
    mode: "train", "validation", or the name of an evaluation set.
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
      mode: "train", "validation", or the name of an evaluation set.
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

  @property
  def modes(self) -> list[str]:
    """What was reported on, in the order of the first reports."""
    return list(dict.fromkeys(row.mode for row in self._rows))

  def metrics(self, mode: str) -> list[str]:
    """Lists the metrics of one mode, in the order of their first reports."""
    return list(dict.fromkeys(name for row in self._rows if row.mode == mode for name in row.metrics))

  def best(self, mode: str, metric: str, comparison: Comparison | None = None) -> tuple[int, float] | None:
    """Returns (step, value) of the best finite value of one metric in one mode, the first of equals; None without any.

    Args:
      mode: "train", "validation", or the name of an evaluation set.
      metric: name of the metric.
      comparison: which is better; None: lower for names that end in "loss", else higher.
    """
    finite = [(step, value) for step, value in self.series(mode, metric) if math.isfinite(value)]
    choose = max if resolved_comparison(metric, comparison) == "higher" else min
    return choose(finite, key=lambda pair: pair[1], default=None)

  def num_before(self, step: int, mode: str) -> int:
    """Returns how many rows of one mode are of steps before `step`."""
    return sum(row.mode == mode and row.step < step for row in self._rows)

  def named_series(self, name: str) -> list[tuple[int, float]]:
    """Returns [(step, value)] of a metric by the name that rules know it by: "accuracy", "outer|inner", "set|accuracy".

    Args:
      name: a metric of the validation set, or the name of an evaluation set and one of its metrics; levels joined by
        "|".
    """
    head, _, rest = name.partition("|")
    if rest and head not in (TRAIN, VALIDATION) and head in self.modes:
      return self.series(head, rest.replace("|", "/"))
    return self.series(VALIDATION, name) or self.series(VALIDATION, name.replace("|", "/"))

  def as_of_evaluation(self, step: int) -> History:
    """Returns the history as it was after the last evaluation at `step` or before it; empty if there was none."""
    evaluated = max((row.step for row in self._rows if row.mode == VALIDATION and row.step <= step), default=-1)
    return History([row for row in self._rows if row.step <= evaluated])

  def to_json(self) -> list[Any]:
    return [[row.step, row.mode, row.metrics] for row in self._rows]

  @classmethod
  def from_json(cls, rows: list[Any]) -> History:
    return cls([Row(int(step), mode, dict(metrics)) for step, mode, metrics in rows])

  def __repr__(self) -> str:
    return f"History({json.dumps(self.to_json())})"
