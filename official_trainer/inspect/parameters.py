"""The table of a model's variables, and its totals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from official_trainer.inspect.quantity import quantity
from official_trainer.optim.group_columns import GroupColumns
from official_trainer.optim.variable_paths import variable_paths

_HEADS = ("path", "shape", "dtype", "parameters", "state", "group", "learning rate", "decay")
_NUMBERS = (3,)
# One line of Markdown for each variable: more would make the page of TensorBoard heavy, and nobody reads them there.
_MOST_SHOWN = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One variable.

  Attributes:
    path: its path in the model (`optim.variable_paths`).
    shape: its shape.
    dtype: the name of the type it is stored in.
    num_parameters: how many numbers it holds.
    num_bytes: how much memory they take on one replica.
    is_updated: whether the optimizer updates it.
    is_frozen: whether it could be updated and is not: its layer or its group is frozen.
    columns: what its parameter group says; None without groups, and for variables that are in none.
  """

  path: str
  shape: tuple[int, ...]
  dtype: str
  num_parameters: int
  num_bytes: int
  is_updated: bool
  is_frozen: bool
  columns: GroupColumns | None

  @property
  def cells(self) -> tuple[str, ...]:
    """The row of the table, without Markdown."""
    state = "trained" if self.is_updated else "frozen" if self.is_frozen else "not trainable"
    shape = "x".join(map(str, self.shape)) or "scalar"
    return (self.path, shape, self.dtype, f"{self.num_parameters:,}", state, *self._of_group())

  def _of_group(self) -> tuple[str, str, str]:
    if self.columns is None:
      return ("-", "-", "-")
    decay = "-" if self.columns.weight_decay is None else f"{self.columns.weight_decay:g}"
    return (self.columns.group or "-", f"x{self.columns.lr_multiplier:g}", decay)


@dataclasses.dataclass(frozen=True)
class ParameterTable:
  """All variables of a model, in the order of their layers."""

  rows: tuple[Row, ...]

  @property
  def num_trainable(self) -> int:
    """Numbers that the optimizer updates."""
    return sum(row.num_parameters for row in self.rows if row.is_updated)

  @property
  def num_non_trainable(self) -> int:
    """All others: frozen ones, and statistics that layers update themselves."""
    return sum(row.num_parameters for row in self.rows if not row.is_updated)

  @property
  def num_parameters(self) -> int:
    return self.num_trainable + self.num_non_trainable

  @property
  def num_bytes(self) -> int:
    """Memory of the variables on one replica, without slots, averages and gradients."""
    return sum(row.num_bytes for row in self.rows)

  @property
  def summary(self) -> str:
    """The totals in one line."""
    return (
      f"{self.num_parameters:,} parameters in {len(self.rows)} variables: {self.num_trainable:,} trainable,"
      f" {self.num_non_trainable:,} not; {quantity(self.num_bytes, 'B')}"
    )

  def to_text(self) -> str:
    """Returns the table in columns of even width, and the totals below."""
    table = [_HEADS, *(row.cells for row in self.rows)]
    shown = _shown_columns(table)
    widths = [max(len(cells[column]) for cells in table) for column in shown]
    lines = [
      "  ".join(_aligned(cells[column], width, column) for column, width in zip(shown, widths, strict=True)).rstrip()
      for cells in table
    ]
    return "\n".join([*lines, "", self.summary, ""])

  def to_markdown(self) -> str:
    """Returns the totals, and the table in Markdown."""
    table = [_HEADS, *(row.cells for row in self.rows[:_MOST_SHOWN])]
    shown = _shown_columns(table)
    lines = ["| " + " | ".join(cells[column].replace("|", "\\|") for column in shown) + " |" for cells in table]
    ruler = "|" + "|".join(" ---: " if column in _NUMBERS else " --- " for column in shown) + "|"
    left_out = len(self.rows) - _MOST_SHOWN
    more = [f"\n{left_out} more variables are in `parameters.txt`."] if left_out > 0 else []
    return "\n".join([self.summary, "", lines[0], ruler, *lines[1:], *more])


def parameter_table(model: tf_keras.Model, columns: Mapping[str, GroupColumns] | None = None) -> ParameterTable:
  """Returns the table of a built model.

  Args:
    model: the model.
    columns: what parameter groups say, by the variable's path. None or empty without groups; then the table has no
      columns of groups.
  """
  updated = {id(variable) for variable in model.trainable_variables}
  return ParameterTable(
    tuple(_row(path, variable, id(variable) in updated, columns) for path, variable in variable_paths(model))
  )


def _row(path: str, variable: tf.Variable, is_trainable: bool, columns: Mapping[str, GroupColumns] | None) -> Row:
  found = (columns or {}).get(path)
  is_frozen = variable.trainable and not is_trainable or (found is not None and found.frozen)
  num_parameters = math.prod(variable.shape)
  return Row(
    path=path,
    shape=tuple(variable.shape),
    dtype=variable.dtype.name,
    num_parameters=num_parameters,
    num_bytes=num_parameters * variable.dtype.size,
    is_updated=is_trainable and not is_frozen,
    is_frozen=is_frozen,
    columns=found,
  )


def _shown_columns(table: Sequence[Sequence[str]]) -> list[int]:
  """Leaves out columns of groups that say nothing."""
  return [column for column in range(len(_HEADS)) if any(cells[column] != "-" for cells in table[1:]) or not table[1:]]


def _aligned(text: str, width: int, column: int) -> str:
  return text.rjust(width) if column in _NUMBERS else text.ljust(width)
