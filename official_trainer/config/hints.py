"""Reads the type hints of config dataclasses, and says them in words."""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from official_trainer.config import durations
from official_trainer.errors import ConfigError

_WORDS: dict[Any, str] = {
  int: "an integer",
  float: "a number",
  bool: "true or false",
  str: "text",
  type(None): "null",
}
_PLURALS: dict[Any, str] = {int: "integers", float: "numbers", bool: "true or false", str: "texts"}


def fields_of(cls: Any) -> dict[str, dataclasses.Field[Any]]:
  """Returns the settable fields of a config dataclass, by name, in order.

  Raises:
    ConfigError: if a subclass declares fields but is not decorated as a dataclass itself.
  """
  return _fields_of(cls)


@functools.cache
def _fields_of(cls: Any) -> dict[str, dataclasses.Field[Any]]:
  if "__dataclass_fields__" not in vars(cls):
    message = (
      f"class {cls.__qualname__} of {cls.__module__} must be a dataclass.\n"
      "Put @dataclasses.dataclass(frozen=True, kw_only=True) above it."
    )
    raise ConfigError.of(cls.__qualname__, message)
  return {field.name: field for field in dataclasses.fields(cls) if field.init}


def hints_of(cls: Any) -> dict[str, Any]:
  """Returns the resolved type hint of every field, with its `Annotated` limits.

  Raises:
    ConfigError: if a hint names something that does not exist in the class's module.
  """
  return _hints_of(cls)


@functools.cache
def _hints_of(cls: Any) -> dict[str, Any]:
  try:
    hints = typing.get_type_hints(cls, include_extras=True)
  except NameError as error:
    message = f"a type hint of {cls.__module__}.{cls.__qualname__} cannot be resolved: {error}"
    raise ConfigError.of(cls.__qualname__, message) from error
  return {name: hints[name] for name in fields_of(cls)}


def bare(hint: Any) -> Any:
  """Returns the hint without its limits."""
  return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def options(hint: Any) -> tuple[Any, ...]:
  """Returns the alternatives of a union, or the hint alone."""
  inner = bare(hint)
  if typing.get_origin(inner) in (Union, types.UnionType):
    return typing.get_args(inner)
  return (hint,)


def allows_none(hint: Any) -> bool:
  """Whether null is a value of this hint."""
  return bare(hint) is Any or type(None) in options(hint)


def is_group(hint: Any) -> bool:
  """Whether the hint is a config dataclass: a group of settings."""
  return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def group_in(hint: Any) -> type | None:
  """Returns the dataclass of `X` or `X | None`, or None when the hint is something else."""
  groups = [option for option in options(hint) if is_group(bare(option))]
  return bare(groups[0]) if len(groups) == 1 else None


def mapped_group(hint: Any) -> type | None:
  """Returns the dataclass `X` of `dict[str, X]`, or None when the hint is something else."""
  args = typing.get_args(bare(hint)) if is_mapping(bare(hint)) else ()
  return args[1] if len(args) == 2 and is_group(args[1]) else None


def words(hint: Any) -> str:
  """Says what a hint accepts, e.g. "an integer or null"."""
  return " or ".join(_word(option) for option in options(hint))


def shown(value: object) -> str:
  """Returns a value as one would write it in YAML: null, true, 'text', [1, 2]."""
  if value is None:
    return "null"
  if isinstance(value, bool):
    return "true" if value else "false"
  if isinstance(value, list | tuple):
    return f"[{', '.join(map(shown, value))}]"
  if isinstance(value, Mapping):
    return f"{{{', '.join(f'{key}: {shown(each)}' for key, each in value.items())}}}"
  return repr(value)


def _word(hint: Any) -> str:
  if (steps := durations.in_steps(hint)) is not None:
    return steps.words
  inner = bare(hint)
  origin = typing.get_origin(inner)
  if inner in _WORDS:
    return _WORDS[inner]
  if inner is Any:
    return "any value"
  if origin is Literal:
    choices = [repr(choice) for choice in typing.get_args(inner)]
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
  if is_sequence(inner):
    items = [item for item in typing.get_args(inner) if item is not Ellipsis]
    if len(items) == 1:
      known = {} if durations.in_steps(items[0]) else _PLURALS
      return f"a list of {known.get(bare(items[0]), words(items[0]))}"
    return f"a list of {len(items)} values" if items else "a list"
  if is_mapping(inner):
    return "a mapping of names to settings" if mapped_group(inner) else "a mapping"
  return getattr(inner, "__name__", str(inner))


def is_sequence(hint: Any) -> bool:
  """Whether the hint is a list, a tuple, or another sequence that is not text."""
  origin = typing.get_origin(hint) or hint
  return isinstance(origin, type) and origin is not str and issubclass(origin, Sequence)


def is_mapping(hint: Any) -> bool:
  """Whether the hint is a dictionary."""
  origin = typing.get_origin(hint) or hint
  return isinstance(origin, type) and issubclass(origin, Mapping)
