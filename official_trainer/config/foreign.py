"""Reads our frozen configs from config objects of other libraries, without importing them.

Any tree of attributes or keys will do: dataclasses, named tuples, ConfigDicts. This module is the
border where foreign objects are looked at; behind it there are only our own types.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from official_trainer.config import assembly, hints
from official_trainer.errors import ConfigError, Origin, Problem

C = TypeVar("C")

_MISSING = object()


def read(cls: type[C], source: Any) -> C:
  """Returns a `cls` with the values that `source` has under the same names.

  Names that only `source` has are ignored; those it lacks take their defaults. Fields of any type
  (such as `task.model`) are taken over as they are.

  Args:
    cls: one of our frozen dataclasses.
    source: a foreign config object, a mapping, or an instance of `cls`, which is returned itself.

  Raises:
    ConfigError: with every value that our field of the same name cannot hold.
  """
  if isinstance(source, cls):
    return source
  part = assembly.Assembly(_draft(cls, source), plain_only=False)
  built = part.finish()
  if part.problems:
    origin = Origin(f"the {type(source).__name__} given")
    raise ConfigError(Problem(p.path, p.message, origin) for p in part.problems)
  result: C = built
  return result


def _draft(cls: type, source: Any) -> assembly.Draft:
  draft = assembly.Draft.default(cls)
  declared = hints.hints_of(cls)
  for name in hints.fields_of(cls):
    value = _get(source, name)
    if value is _MISSING:
      continue
    group = hints.group_in(declared[name])
    if group is not None and value is None:
      if hints.allows_none(declared[name]):
        draft.values[name] = None
    elif group is not None:
      draft.values[name] = _draft(group, value)
    else:
      draft.values[name] = value if declared[name] is Any else _plain(value)
  return draft


def _get(source: Any, name: str) -> Any:
  if isinstance(source, Mapping):
    return source.get(name, _MISSING)
  try:
    return getattr(source, name, _MISSING)
  except KeyError:
    return _MISSING


def _plain(value: Any) -> Any:
  """Foreign sequences and mappings become those that our hints can read."""
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  as_dict = getattr(value, "as_dict", None)
  return as_dict() if callable(as_dict) else value
