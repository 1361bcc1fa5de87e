"""Reads what --params_override takes: `a.b=c,d.e=f`, YAML or JSON text, or a file of it."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from official_trainer.config import yaml_text
from official_trainer.config.yaml_text import Document
from official_trainer.errors import Origin, Problem

LAYER = "--params_override"

_ASSIGNMENT = re.compile(r"\s*[\w./|-]+\s*=")
_FILE = re.compile(r"[^\n={}]+\.(?:ya?ml|json)\s*")
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def parse(text: str, layer: str = LAYER) -> Document:
  """Returns the values of one override.

  Args:
    text: `trainer.train_steps=10,runtime.seed=3` (commas inside brackets or quotes separate
      nothing); or `{"trainer": {"train_steps": 10}}` as YAML or JSON; or the path of a .yaml or
      .json file.
    layer: what the text is, for errors.

  Returns:
    The values, and among its `problems` every assignment that cannot be read.

  Raises:
    ConfigError: if nothing can be read at all.
  """
  if _FILE.fullmatch(text):
    return yaml_text.read_file(text.strip(), layer)
  if _ASSIGNMENT.match(text):
    return _assignments(text, layer)
  return yaml_text.read(text, layer=layer)


def split(text: str) -> Iterator[str]:
  """Yields the parts of a text between commas that are in no brackets and no quotes."""
  start, closing, quote = 0, [], ""
  for index, char in enumerate(text):
    if quote:
      quote = "" if char == quote else quote
    elif char in "'\"" and text[start:index].rstrip()[-1:] in ("=", "[", "{", "(", ",", ":"):
      quote = char
    elif char in _CLOSING:
      closing.append(_CLOSING[char])
    elif closing and char == closing[-1]:
      closing.pop()
    elif char == "," and not closing:
      yield text[start:index]
      start = index + 1
  yield text[start:]


def _assignments(text: str, layer: str) -> Document:
  values: dict[str, Any] = {}
  problems = []
  for part in split(text.strip().rstrip(",")):
    key, equals, written = part.partition("=")
    key = key.strip()
    if not equals or not key:
      message = "is not of the form key=value. Put lists in [ ], and text with commas in quotes: a.b='x,y'."
      problems.append(Problem(part.strip() or "''", message, Origin(layer)))
      continue
    try:
      value = yaml_text.scalar(written) if written.strip() else ""
    except (yaml.YAMLError, ValueError):
      message = f"cannot read the value {written.strip()!r}. Put text with : or brackets in quotes."
      problems.append(Problem(key, message, Origin(layer)))
      continue
    if not _put(values, key.split("."), value):
      message = "is set in this text as a whole and in parts, of which one would undo the other.\nUse two overrides."
      problems.append(Problem(key, message, Origin(layer)))
  return Document(values, {}, problems=tuple(problems))


def _put(values: dict[str, Any], keys: list[str], value: Any) -> bool:
  """Stores a value under nested keys; a later value for the same key wins.

  Returns:
    Whether it was stored: not if a group and a single value other than null would be in one place.
  """
  for key in keys[:-1]:
    inner = values.get(key)
    if inner is None:
      inner = values[key] = {}
    elif not isinstance(inner, dict):
      return False
    values = inner
  if isinstance(values.get(keys[-1]), dict) and not (value is None or isinstance(value, dict)):
    return False
  values[keys[-1]] = value
  return True
