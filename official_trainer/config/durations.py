"""Lengths of training as people write them: 2000, "90 epochs", "1.2M examples", "5%".

A field whose hint is `Steps` or `PositiveSteps` holds a number of steps when the run is built; before, it may hold such
a text. `config.steps` turns texts into numbers.
"""

import dataclasses
import re
import typing
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from official_trainer.config import nearest

if TYPE_CHECKING:
  import pydantic
  import pydantic_core

Unit = Literal["steps", "epochs", "examples", "percent"]
Data = Literal["train", "validation"]

UNITS: tuple[Unit, ...] = ("steps", "epochs", "examples", "percent")
ERROR = "duration"
"""Type of the errors that say all there is to say about a duration."""

_SPELLED: dict[str, Unit] = {
  "%": "percent",
  "percent": "percent",
  **{word: unit for unit in UNITS[:3] for word in (unit, unit.removesuffix("s"))},
}
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_WRITTEN = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([kMB]?)\s*(%|[A-Za-z]+)")
_EXAMPLES: dict[Unit, str] = {
  "steps": "a number of steps",
  "epochs": "'90 epochs'",
  "examples": "'1.2M examples'",
  "percent": "'5%' of trainer.train_steps",
}


@dataclasses.dataclass(frozen=True)
class Duration:
  """An exact amount of a unit."""

  amount: Fraction
  unit: Unit


def parse(text: str, units: tuple[Unit, ...] = UNITS) -> Duration:
  """Reads an amount and its unit: "90 epochs", "1.5 epochs", "1_000_000 examples", "1.2M examples", "5%", "2k steps".

  Args:
    text: what was written.
    units: those that are allowed.

  Raises:
    ValueError: with a sentence that says what is allowed.
  """
  found = _WRITTEN.fullmatch(text.strip())
  amount, factor, word = found.groups() if found else ("0", "", "")
  unit = _SPELLED.get(word)
  if unit is None or unit not in units or (unit == "percent" and factor):
    shown = ", ".join(_EXAMPLES[each] for each in units[:-1]) + f" or {_EXAMPLES[units[-1]]}"
    hint = nearest.meant(word, [each for each in _SPELLED if _SPELLED[each] in units]) if word and unit is None else ""
    raise ValueError(f"must be {shown}, got {text!r}.{hint}")
  return Duration(Fraction(amount) * _FACTORS[factor], unit)


@dataclasses.dataclass(frozen=True)
class InSteps:
  """Says of an integer field that a duration may be written there, and how the number of steps is limited.

  Attributes:
    least: the smallest number of steps.
    units: in which a text may be.
    data: whose epochs and batches are meant.
  """

  least: int = 0
  units: tuple[Unit, ...] = UNITS
  data: Data = "train"

  @property
  def words(self) -> str:
    """What the field takes, for people."""
    return ", ".join(self.units[:-1]) + f" or {self.units[-1]}"

  def __get_pydantic_core_schema__(
    self, source: Any, handler: "pydantic.GetCoreSchemaHandler"
  ) -> "pydantic_core.CoreSchema":
    """Makes pydantic check the field by `_checked`."""
    from pydantic_core import core_schema

    del source, handler
    return core_schema.no_info_plain_validator_function(self._checked)

  def _checked(self, value: object) -> int | str:
    from pydantic_core import PydanticCustomError, PydanticKnownError

    if isinstance(value, str):
      try:
        parse(value, self.units)
      except ValueError as error:
        raise PydanticCustomError(ERROR, "{sentence}", {"sentence": str(error)}) from error
      return value
    if isinstance(value, float):
      sentence = f"must be a whole number of steps, or a text such as {_EXAMPLES['epochs']}, got {value}."
      raise PydanticCustomError(ERROR, "{sentence}", {"sentence": sentence})
    if isinstance(value, bool) or not isinstance(value, int):
      raise PydanticKnownError("int_type")
    if value < self.least:
      raise PydanticKnownError("greater_than_equal", {"ge": self.least})
    return value


def in_steps(hint: Any) -> InSteps | None:
  """Returns what is said about durations in the hint of a field, or None where it is about something else."""
  if typing.get_origin(hint) is not Annotated:
    return None
  return next((each for each in typing.get_args(hint)[1:] if isinstance(each, InSteps)), None)


Steps = Annotated[int, InSteps()]
"""A number of steps, 0 allowed; in a config also a duration."""

PositiveSteps = Annotated[int, InSteps(least=1)]
"""A number of steps of at least 1; in a config also a duration."""

TrainSteps = Annotated[int, InSteps(units=("steps", "epochs", "examples"))]
"""The length of the whole run, of which others may be a percentage."""

EvaluationSteps = Annotated[int, InSteps(least=-1, units=("steps", "epochs", "examples"), data="validation")]
"""A number of evaluation batches, -1 for all; in a config also a duration in terms of the evaluation data."""
