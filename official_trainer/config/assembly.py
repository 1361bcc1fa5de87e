"""Puts a config together from layers: later values over earlier ones, each with where it came from.

A config of frozen dataclasses is taken apart into drafts, the layers are written into them, and
`finish` checks every value and builds the frozen dataclasses again. Problems are collected, not
raised.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.config import hints, nearest, values
from official_trainer.config.fields import OneOf
from official_trainer.errors import DEFAULT, ConfigError, Origin, Problem

OriginOf = Callable[[str], Origin]
"""Where the value with a dotted key was written."""


@dataclasses.dataclass
class Draft:
  """One config dataclass whose values may still change: a plain value, a draft, or drafts by name for each field."""

  cls: type
  values: dict[str, Any]

  @classmethod
  def of(cls, config: Any) -> "Draft":
    """Takes a config dataclass apart, nested ones too."""
    kind = type(config)
    found = {name: getattr(config, name) for name in hints.fields_of(kind)}
    return cls(kind, {name: cls.taken_apart(value) for name, value in found.items()})

  @classmethod
  def taken_apart(cls, value: Any) -> Any:
    """Returns drafts in the place of config dataclasses, also of those in a dictionary of them."""
    if hints.is_group(type(value)):
      return cls.of(value)
    if isinstance(value, Mapping) and any(hints.is_group(type(item)) for item in value.values()):
      return {name: cls.taken_apart(item) for name, item in value.items()}
    return value

  @classmethod
  def default(cls, kind: type) -> "Draft":
    """Returns the draft of a dataclass at its defaults; fields without one are left out."""
    draft = cls(kind, {})
    for name, field in hints.fields_of(kind).items():
      value = field_default(field)
      if value is not dataclasses.MISSING:
        draft.values[name] = cls.taken_apart(value)
    return draft


class Assembly:
  """A config under construction.

  Attributes:
    provenance: where each value came from, by dotted key; a key that is missing is at its default.
    problems: what was wrong so far.
  """

  def __init__(self, root: Draft, prefix: str = "", *, plain_only: bool = True):
    """Starts from a draft.

    Args:
      root: the config as it is so far.
      prefix: its dotted key.
      plain_only: whether values that YAML could not hold are refused.
    """
    self._root = root
    self._prefix = prefix
    self._plain_only = plain_only
    self.provenance: dict[str, Origin] = {}
    self.problems: list[Problem] = []

  @classmethod
  def of(cls, config: Any, origin: Origin) -> "Assembly":
    """Starts from a config made in Python; what differs from its classes' defaults has `origin`."""
    assembly = cls(Draft.of(config))
    default = Draft.default(type(config))
    for path in _changed(assembly._root, default, ""):
      assembly.provenance[path] = origin
    return assembly

  def apply(self, layer: Mapping[Any, Any], origin_of: OriginOf) -> None:
    """Writes one layer of nested mappings over what is there."""
    self._write(self._root, layer, self._prefix, origin_of)

  def finish(self) -> Any:
    """Checks every value and returns the config.

    A value that was refused is replaced by its default, so that the rest can still be checked: look
    at `problems` before using the result. None where nothing could be built at all.
    """
    return self._build(self._root, self._prefix)

  def origin(self, path: str) -> Origin:
    """Returns where a value came from, or what it is part of."""
    while path:
      if path in self.provenance:
        return self.provenance[path]
      path = path.rpartition(".")[0]
    return DEFAULT

  def keys(self) -> list[str]:
    """Returns the dotted keys of all plain values."""
    return list(_leaves(self._root, self._prefix))

  def _write(self, draft: Draft, layer: Mapping[Any, Any], prefix: str, origin_of: OriginOf) -> None:
    for written, value in layer.items():
      key, _, rest = str(written).partition(".")
      if str(written) in hints.fields_of(draft.cls):
        self._set(draft, str(written), value, join(prefix, str(written)), origin_of)
      elif rest and key in hints.fields_of(draft.cls):
        self._set(draft, key, {rest: value}, join(prefix, key), origin_of)
      else:
        path = join(prefix, str(written))
        self._report(path, self._unknown(draft, str(written), prefix), origin_of(path))

  def _set(self, draft: Draft, key: str, value: Any, path: str, origin_of: OriginOf) -> None:
    hint = hints.hints_of(draft.cls)[key]
    if (item := hints.mapped_group(hint)) is not None and isinstance(value, Mapping):
      self._set_items(draft, key, item, value, path, origin_of)
      return
    current = draft.values.get(key)
    kind = current.cls if isinstance(current, Draft) else hints.group_in(hint)
    if hints.is_group(type(value)):
      value = Draft.of(value)
      kind = None
    if kind is not None and (written := _written_out(kind, value)) is not None:
      origin = origin_of(path)
      value, origin_of = written, lambda _: origin
    if kind is not None and isinstance(value, Mapping):
      if not isinstance(current, Draft):
        current = draft.values[key] = Draft.default(kind)
        self._forget(path)
        self.provenance.update(dict.fromkeys(_leaves(current, path), origin_of(path)))
      self._write(current, value, path, origin_of)
    elif kind is not None and not (value is None and hints.allows_none(hint)):
      self._report(path, _not_a_group(kind, path, value), origin_of(path))
    else:
      self._forget(path)
      draft.values[key] = value
      leaves = _leaves(value, path) if isinstance(value, Draft) else [path]
      self.provenance.update(dict.fromkeys(leaves, origin_of(path)))

  def _set_items(
    self, draft: Draft, key: str, kind: type, layer: Mapping[Any, Any], path: str, origin_of: OriginOf
  ) -> None:
    """Writes over the groups of a dictionary, by name: new names are added, null takes one away."""
    current = draft.values.get(key)
    items = dict(current) if isinstance(current, Mapping) else {}
    for written, value in layer.items():
      name, _, rest = str(written).partition(".")
      where = join(path, name)
      value = {rest: value} if rest else value
      before = items.get(name)
      if value is None:
        self._forget(where)
        items.pop(name, None)
      elif hints.is_group(type(value)):
        items[name] = Draft.of(value)
        self._forget(where)
        self.provenance.update(dict.fromkeys(_leaves(items[name], where), origin_of(where)))
      elif isinstance(value, Mapping):
        items[name] = before if isinstance(before, Draft) else Draft.default(kind)
        self._write(items[name], value, where, origin_of)
      else:
        self._report(where, _not_a_group(kind, where, value), origin_of(where))
    self.provenance.pop(path, None)
    if not items:
      self.provenance[path] = origin_of(path)
    draft.values[key] = items

  def _forget(self, path: str) -> None:
    for key in [k for k in self.provenance if k == path or k.startswith(f"{path}.")]:
      del self.provenance[key]

  def _build(self, draft: Draft, path: str) -> Any:
    arguments = {}
    complete = True
    declared = hints.hints_of(draft.cls)
    for name, field in hints.fields_of(draft.cls).items():
      where = join(path, name)
      if name not in draft.values:
        self._report(where, "is required.", self.origin(path))
        complete = False
        continue
      good, value = self._value(declared[name], draft.values[name], where)
      if not good:
        value = field_default(field)
        complete = complete and value is not dataclasses.MISSING
      arguments[name] = value
    if not complete:
      return None
    try:
      return draft.cls(**arguments)
    except (TypeError, ValueError) as error:
      self._report(path or draft.cls.__name__, f"{error}", self.origin(path))
      return None

  def _value(self, hint: Any, value: Any, path: str) -> tuple[bool, Any]:
    if isinstance(value, Draft):
      kind = hints.group_in(hint)
      if kind is not None and not issubclass(value.cls, kind):
        message = f"must be a {kind.__name__}, got a {value.cls.__name__} of {value.cls.__module__}."
        self._report(path, message, self.origin(path))
        return False, None
      built = self._build(value, path)
      return built is not None, built
    if (item := hints.mapped_group(hint)) is not None and isinstance(value, Mapping):
      parts = {name: self._value(item, each, join(path, str(name))) for name, each in value.items()}
      return all(good for good, _ in parts.values()), {name: part for name, (_, part) in parts.items()}
    before = len(self.problems)
    converted = values.convert(hint, value, path, self._part)
    if len(self.problems) > before:
      return False, None
    checked, sentence = values.check(hint, converted)
    if sentence is None and self._plain_only:
      sentence = not_plain(checked)
    if sentence:
      self._report(path, sentence, self.origin(path))
    return sentence is None, checked

  def _part(self, kind: type, mapping: object, path: str) -> object:
    """Builds a dataclass that is an item of a list or a dictionary."""
    part = Assembly(Draft.default(kind), path)
    part.provenance = self.provenance
    origin = self.origin(path)
    part.apply(mapping if isinstance(mapping, Mapping) else {}, lambda _: origin)
    built = part.finish()
    self.problems.extend(part.problems)
    return built

  def _report(self, path: str, message: str, origin: Origin) -> None:
    problem = Problem(path, message, origin)
    if problem not in self.problems:
      self.problems.append(problem)

  def _unknown(self, draft: Draft, key: str, prefix: str) -> str:
    names = list(hints.fields_of(draft.cls))
    near = nearest.nearest(key.partition(".")[0], names)
    if near:
      rest = key.partition(".")[1:]
      return f"unknown key. Did you mean '{join(prefix, near[0])}{''.join(rest)}'?"
    last = key.rpartition(".")[2]
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(list(_paths(self._root, "")))}
    near = nearest.nearest(last, elsewhere)
    if near:
      return f"unknown key. Did you mean '{elsewhere[near[0]]}'?"
    return f"unknown key. Keys here: {', '.join(names)}."


def field_default(field: dataclasses.Field[Any]) -> Any:
  """Returns the default of a field, or `dataclasses.MISSING`."""
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  return field.default


def join(prefix: str, key: str) -> str:
  """Returns the dotted key of `key` inside `prefix`."""
  return f"{prefix}.{key}" if prefix else key


def not_plain(value: object) -> str | None:
  """Says what is wrong with a value that YAML could not hold, or returns None."""
  if value is None or type(value) in (bool, int, float, str):
    return None
  if isinstance(value, list | tuple):
    return next(filter(None, map(not_plain, value)), None)
  if isinstance(value, Mapping):
    return next(filter(None, map(not_plain, [*value, *value.values()])), None)
  if hints.is_group(type(value)):
    return next(filter(None, (not_plain(getattr(value, k)) for k in hints.fields_of(type(value)))), None)
  kind = type(value)
  return (
    f"must be plain data (null, true, numbers, text, lists, mappings, dataclasses), "
    f"got {value!r} of type {kind.__module__}.{kind.__qualname__}."
  )


def _leaves(draft: Draft, prefix: str) -> Iterator[str]:
  for path, value in _items(draft, prefix):
    if not (isinstance(value, Draft) or _drafts_in(value)):
      yield path


def _paths(draft: Draft, prefix: str) -> Iterator[str]:
  for path, _ in _items(draft, prefix):
    yield path


def _items(draft: Draft, prefix: str) -> Iterator[tuple[str, Any]]:
  for name, value in draft.values.items():
    path = join(prefix, name)
    yield path, value
    if isinstance(value, Draft):
      yield from _items(value, path)
    for key, item in _drafts_in(value).items():
      yield join(path, key), item
      yield from _items(item, join(path, key))


def _drafts_in(value: Any) -> dict[str, Draft]:
  """Returns the drafts of a dictionary, by name; nothing for other values."""
  return {k: v for k, v in value.items() if isinstance(v, Draft)} if isinstance(value, Mapping) else {}


def _changed(draft: Draft, default: Draft, prefix: str) -> Iterator[str]:
  """Yields the keys of plain values that differ from the defaults of the classes in use."""
  for name, value in draft.values.items():
    path = join(prefix, name)
    standard = default.values.get(name, dataclasses.MISSING)
    if drafts := _drafts_in(value):
      known = _drafts_in(standard)
      for key, item in drafts.items():
        yield from _changed(item, known.get(key, Draft.default(item.cls)), join(path, key))
    elif not isinstance(value, Draft):
      if type(value) is not type(standard) or value != standard:
        yield path
    elif not isinstance(standard, Draft):
      yield from _leaves(value, path)
    elif standard.cls is value.cls:
      yield from _changed(value, standard, path)
    else:
      yield from _changed(value, Draft.default(value.cls), path)


def _written_out(kind: type, value: object) -> dict[str, Any] | None:
  """Returns what a value in place of a choice is short for, or None if it is short for nothing."""
  if not issubclass(kind, OneOf) or kind.shorthand is None or value is None or isinstance(value, Mapping):
    return None
  name, key = kind.shorthand
  chosen = hints.group_in(hints.hints_of(kind)[name])
  hint = hints.hints_of(chosen)[key]
  fits = values.check(hint, values.convert(hint, value, key, lambda *_: None))[1] is None
  return {"type": name, name: {key: value}} if fits else None


def _not_a_group(kind: type, path: str, value: object) -> str:
  keys = list(hints.fields_of(kind))
  if issubclass(kind, OneOf) and value in keys:
    return f"is a choice with settings. Write '{path}.type={value}'."
  shown = ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")
  short = f", or {'.'.join(kind.shorthand)} alone" if issubclass(kind, OneOf) and kind.shorthand else ""
  return f"must be a group of settings ({shown}){short}, got {hints.shown(value)}."


def from_mapping(kind: type, mapping: Mapping[Any, Any], path: str = "") -> Any:
  """Builds a config dataclass from nested mappings; missing keys take their defaults.

  Raises:
    ConfigError: with every problem found.
  """
  assembly = Assembly(Draft.default(kind), path)
  assembly.apply(mapping, lambda _: Origin("mapping"))
  built = assembly.finish()
  if assembly.problems:
    raise ConfigError(dataclasses.replace(problem, origin=None) for problem in assembly.problems)
  return built
