"""YAML with the meanings people expect, and with the line of every key.

Scalars follow YAML 1.2, not 1.1: `1e-3` is a number, `off` and `no` are words, 010 is ten and dates
are text. A key that appears twice is an error. Text that either version would read as something
else is written in quotes, so that other tools read our files the same way.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from official_trainer.errors import ConfigError, Origin, Problem

_INT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(
  r"[-+]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SCALARS = {
  "tag:yaml.org,2002:null": (re.compile(r"~|null|Null|NULL|"), ("~", "n", "N", "")),
  "tag:yaml.org,2002:bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), tuple("tTfF")),
  "tag:yaml.org,2002:int": (_INT, tuple("-+0123456789")),
  "tag:yaml.org,2002:float": (_FLOAT, tuple("-+.0123456789")),
  "tag:yaml.org,2002:merge": (re.compile(r"<<"), ("<",)),
}


class Loader(yaml.SafeLoader):
  """Builds plain data only, with the scalars of YAML 1.2."""

  yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

  def construct_int(self, node: yaml.ScalarNode) -> int:
    """Reads 010 as ten; 0x10 and 0o10 are as in Python."""
    text = str(self.construct_scalar(node)).replace("_", "")
    return int(text, 0) if text.startswith(("0x", "0o")) else int(text)

  def construct_tuple(self, node: yaml.SequenceNode) -> list[Any]:
    """Reads the tuples of other libraries' files as lists."""
    return self.construct_sequence(node, deep=True)


class Dumper(yaml.SafeDumper):
  """Quotes what YAML 1.1 or 1.2 would not read as text; writes lists of plain values in a line."""

  def ignore_aliases(self, data: Any) -> bool:
    return True

  def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
    flat = not any(isinstance(item, list | dict) for item in sequence)
    return super().represent_sequence(tag, sequence, flow_style=flat)


for _tag, (_pattern, _first) in _SCALARS.items():
  _whole = re.compile(rf"^(?:{_pattern.pattern})$")
  Loader.add_implicit_resolver(_tag, _whole, list(_first))
  if _tag != "tag:yaml.org,2002:merge":
    Dumper.add_implicit_resolver(_tag, _whole, list(_first))
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_int)
Loader.add_constructor("tag:yaml.org,2002:python/tuple", Loader.construct_tuple)


@dataclasses.dataclass(frozen=True)
class Document:
  """What a YAML text holds.

  Attributes:
    values: the nested mappings.
    lines: the line of each dotted key, counted from 1.
    file: name of the file, or None.
    problems: parts that could not be read.
  """

  values: dict[Any, Any]
  lines: Mapping[str, int]
  file: str | None = None
  problems: tuple[Problem, ...] = ()

  def origin(self, layer: str, path: str) -> Origin:
    """Returns where a dotted key, or the nearest thing around it, was written."""
    if self.file is None:
      return Origin(layer)
    while path and path not in self.lines:
      path = path.rpartition(".")[0]
    return Origin(layer, self.file, self.lines.get(path))


def read(text: str, file: str | None = None, layer: str = "config_file") -> Document:
  """Reads a text that must hold one mapping, or nothing.

  Args:
    text: YAML or JSON.
    file: name of the file it came from, for errors.
    layer: what the file is, for errors.

  Raises:
    ConfigError: for broken YAML, a key that appears twice, or something other than a mapping.
  """
  loader = Loader(text)
  try:
    node = loader.get_single_node()
    if node is None:
      return Document({}, {}, file)
    lines = dict(_lines(node, "", file, layer))
    values = loader.construct_document(node)
  except yaml.MarkedYAMLError as error:
    line = error.problem_mark.line + 1 if error.problem_mark else None
    message = f"cannot be read as YAML: {error.problem or error.context}."
    raise ConfigError.of(file or layer, message, Origin(layer, file, line)) from error
  except (yaml.YAMLError, ValueError) as error:
    message = f"cannot be read as YAML: {error}."
    raise ConfigError.of(file or layer, message, Origin(layer, file)) from error
  finally:
    loader.dispose()
  if not isinstance(values, dict):
    message = f"must hold keys and values (key: value), got {values!r}."
    raise ConfigError.of(file or layer, message, Origin(layer, file, 1))
  return Document(values, lines, file)


def read_file(path: str, layer: str = "config_file") -> Document:
  """Reads a YAML or JSON file. Raises `ConfigError` also when it cannot be opened."""
  try:
    with open(path, encoding="utf-8") as stream:
      text = stream.read()
  except (OSError, UnicodeDecodeError) as error:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    message = f"cannot read '{path}': {reason}. Give the path of a YAML or JSON file on this machine."
    raise ConfigError.of(f"--{layer}".replace("----", "--"), message) from error
  return read(text, path, layer)


def scalar(text: str) -> Any:
  """Reads one value: a number, true, null, a list in [], a mapping in {}, or text."""
  return yaml.load(text, Loader)  # noqa: S506 (Loader is a SafeLoader)


def dump(values: Mapping[str, Any]) -> str:
  """Writes nested mappings as YAML, in their own order."""
  return yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, width=100, default_flow_style=False)


def _lines(node: yaml.Node, path: str, file: str | None, layer: str) -> Iterator[tuple[str, int]]:
  if isinstance(node, yaml.MappingNode):
    seen: dict[str, int] = {}
    for key, value in node.value:
      name = str(key.value)
      where = f"{path}.{name}" if path else name
      line = key.start_mark.line + 1
      if name in seen and name != "<<":
        message = f"appears twice, first in line {seen[name]}. Remove one of them."
        raise ConfigError.of(where, message, Origin(layer, file, line))
      seen[name] = line
      yield where, line
      yield from _lines(value, path if name == "<<" else where, file, layer)
  elif isinstance(node, yaml.SequenceNode):
    for index, value in enumerate(node.value):
      yield f"{path}.{index}", value.start_mark.line + 1
      yield from _lines(value, f"{path}.{index}", file, layer)
