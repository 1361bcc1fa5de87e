"""Turns written values into the types that fields declare, and checks them.

`convert` reads what YAML, a flag or Python gives as the type that is wanted, only where nothing can
be lost: '1e-3' and 1 are floats, 1e4 is the integer 10000; 10.5, 'abc' and true are not integers.
`check` then holds the result against the whole hint, limits included, with pydantic in its strict
mode.
"""

import functools
import re
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from official_trainer.config import durations, hints, nearest

if TYPE_CHECKING:
  import pydantic

Build = Callable[[type, object, str], object]
"""Makes a dataclass of a type from a mapping found at a path."""

_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_NULL = ("none", "null", "~")
_INTEGER = re.compile(r"[-+]?\d+(_\d+)*")

_LIMITS = {
  "greater_than": ("gt", "greater than"),
  "greater_than_equal": ("ge", "at least"),
  "less_than": ("lt", "less than"),
  "less_than_equal": ("le", "at most"),
  "multiple_of": ("multiple_of", "a multiple of"),
}


def convert(hint: Any, value: object, path: str, build: Build) -> object:
  """Returns `value` as the type of `hint` where that loses nothing, else unchanged.

  Args:
    hint: the declared type.
    value: what was written.
    path: dotted key of the value.
    build: called for mappings where the hint has a dataclass.
  """
  choices = hints.options(hint)
  if len(choices) > 1:
    return _convert_to_one(choices, value, path, build)
  inner = hints.bare(hint)
  if inner is float:
    return _number(value)
  if inner is int:
    return _whole(value)
  if inner is bool:
    return _truth(value)
  if hints.is_group(inner):
    return build(inner, value, path) if isinstance(value, Mapping) else value
  if hints.is_sequence(inner) and isinstance(value, list | tuple):
    return _sequence(inner, value, path, build)
  if hints.is_mapping(inner) and isinstance(value, Mapping):
    args = typing.get_args(inner)
    item = args[1] if len(args) == 2 else Any
    return {key: convert(item, each, f"{path}.{key}", build) for key, each in value.items()}
  return value


def check(hint: Any, value: object) -> tuple[object, str | None]:
  """Holds a converted value against its hint.

  Returns:
    The value (an int given for a float as a float), and a sentence about what is wrong, or None.
  """
  import pydantic

  try:
    return _adapter(hint).validate_python(value, strict=True), None
  except pydantic.ValidationError as error:
    return value, _sentence(hint, value, error)


@functools.cache
def _adapter(hint: Any) -> "pydantic.TypeAdapter[Any]":
  import pydantic

  return pydantic.TypeAdapter(hint)


def _convert_to_one(choices: tuple[Any, ...], value: object, path: str, build: Build) -> object:
  """The first alternative that takes the value as it is, else the first that takes it converted."""
  if type(None) in choices and isinstance(value, str) and value.lower() in _NULL:
    return None
  for choice in choices:
    if not hints.is_group(choice) and check(choice, value)[1] is None:
      return value
  for choice in choices:
    converted = convert(choice, value, path, build)
    if check(choice, converted)[1] is None:
      return converted
  return value


def _sequence(hint: Any, value: list[Any] | tuple[Any, ...], path: str, build: Build) -> object:
  args = typing.get_args(hint)
  items: list[Any]
  if (typing.get_origin(hint) or hint) is tuple and args and args[-1] is not Ellipsis:
    items = list(args) if len(args) == len(value) else [Any] * len(value)
  else:
    items = [args[0] if args else Any] * len(value)
  converted = [
    convert(item, each, f"{path}.{index}", build) for index, (item, each) in enumerate(zip(items, value, strict=True))
  ]
  return converted if (typing.get_origin(hint) or hint) is list else tuple(converted)


def _number(value: object) -> object:
  if isinstance(value, bool):
    return value
  if isinstance(value, int):
    return float(value)
  if isinstance(value, str):
    try:
      return float(value)
    except ValueError:
      return value
  return value


def _whole(value: object) -> object:
  if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
    return int(value)
  number = _number(value) if isinstance(value, str) else value
  if isinstance(number, float) and number.is_integer():
    return int(number)
  return value


def _truth(value: object) -> object:
  if isinstance(value, str) and value.lower() in _TRUE:
    return True
  if isinstance(value, str) and value.lower() in _FALSE:
    return False
  return value


def _sentence(hint: Any, value: object, error: "pydantic.ValidationError") -> str:
  details = error.errors(include_url=False, include_context=True, include_input=True)
  if said := [detail["msg"] for detail in details if detail["type"] == durations.ERROR]:
    return said[0]
  limits = [detail for detail in details if detail["type"] in _LIMITS]
  if limits:
    name, word = _LIMITS[limits[0]["type"]]
    limit = limits[0].get("ctx", {})[name]
    where = "every value " if limits[0]["loc"] and isinstance(value, list | tuple) else ""
    text = f"{where}must be {word} {limit:g}, got {hints.shown(limits[0]['input'])}."
  else:
    text = f"must be {hints.words(hint)}, got {hints.shown(value)}."
    if isinstance(value, int | float) and not isinstance(value, bool):
      if str in map(hints.bare, hints.options(hint)):
        text += " Write it in quotes."
  return text + _meant(hint, value)


def _meant(hint: Any, value: object) -> str:
  """Suggests the allowed word nearest to a misspelt one."""
  allowed = [
    word
    for option in hints.options(hint)
    if typing.get_origin(hints.bare(option)) is Literal
    for word in typing.get_args(hints.bare(option))
  ]
  return nearest.meant(value, allowed) if isinstance(value, str) else ""
