"""Shows a config to a person: every value, or the changed ones, each with where it came from."""

from collections.abc import Iterator
from typing import TextIO

from official_trainer.config import base, hints
from official_trainer.config.loading import LoadedExperiment


def rows(loaded: LoadedExperiment, *, changed_only: bool = False) -> Iterator[tuple[str, str, str]]:
  """Yields (dotted key, value as in YAML, origin), in the order of the config.

  Left out are kinds of a choice that are not chosen and at their defaults, and names that are kept
  for compatibility only.

  Args:
    loaded: the config.
    changed_only: whether values at their defaults are left out.
  """
  changed = set(loaded.changed())
  derived = loaded.derived()
  for key, value in _values(loaded, changed):
    if key in derived:
      yield key, derived[key], "derived"
    elif key in changed or not changed_only:
      yield key, hints.shown(value), str(loaded.provenance[key])


def print_rows(loaded: LoadedExperiment, stream: TextIO, *, changed_only: bool = False) -> None:
  """Prints the rows: a table on a terminal, else one line each that tools can cut at the '#'."""
  found = list(rows(loaded, changed_only=changed_only))
  if stream.isatty():
    _print_table(loaded.name, found, stream)
    return
  left = [f"{key} = {value}" for key, value, _ in found]
  width = min(max(map(len, left), default=0), 72)
  for text, (_, _, origin) in zip(left, found, strict=True):
    print(f"{text:<{width}}  # {origin}", file=stream)


def _print_table(name: str, found: list[tuple[str, str, str]], stream: TextIO) -> None:
  from rich.console import Console
  from rich.table import Table
  from rich.text import Text

  table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
  table.add_column("key", no_wrap=True)
  for column in ("value", "from"):
    table.add_column(column, overflow="fold")
  for key, value, origin in found:
    style = "dim" if origin == "default" else ""
    table.add_row(Text(key), Text(value), Text(origin), style=style)
  Console(file=stream).print(table)


def _values(loaded: LoadedExperiment, changed: set[str]) -> Iterator[tuple[str, object]]:
  written = base.to_dict(loaded.config, keep=changed)
  kept = set(_kept_names(loaded.config, ""))
  for key in loaded.provenance:
    value: object = written
    for part in key.split("."):
      value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
    if value is not _ABSENT and key not in kept:
      yield key, value


def _kept_names(config: object, prefix: str) -> Iterator[str]:
  for name, field in hints.fields_of(type(config)).items():
    key = f"{prefix}{name}"
    value = getattr(config, name)
    if field.metadata.get("only_default"):
      yield key
    if hints.is_group(type(value)):
      yield from _kept_names(value, f"{key}.")


_ABSENT = object()
