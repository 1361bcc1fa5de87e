"""Config dataclasses as plain data and as YAML text, both ways."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from official_trainer.config import assembly, hints, yaml_text
from official_trainer.config.fields import OneOf
from official_trainer.errors import ConfigError

C = TypeVar("C")


def to_dict(config: Any, *, keep: Collection[str] = (), path: str = "") -> dict[str, Any]:
  """Returns a config dataclass as nested dictionaries, lists and plain values.

  A choice (`OneOf`) is written with its chosen kind; the other kinds only where they differ from
  their defaults. `from_dict` gives an equal config.

  Args:
    config: the dataclass.
    keep: dotted keys that are written in any case, also in a kind that is not chosen.
    path: dotted key of `config` itself.

  Raises:
    ConfigError: if a value is not plain data.
  """
  kind = type(config)
  written = {}
  for name, field in hints.fields_of(kind).items():
    where = assembly.join(path, name)
    value = getattr(config, name)
    if issubclass(kind, OneOf) and name not in ("type", config.type):
      kept = any(key == where or key.startswith(f"{where}.") for key in keep)
      if not kept and value == assembly.field_default(field):
        continue
    written[name] = _plain(value, keep, where)
  return written


def from_dict(cls: type[C], mapping: Mapping[str, Any], path: str = "") -> C:
  """Builds a config dataclass from nested mappings; missing keys take their defaults.

  Args:
    cls: the dataclass.
    mapping: what `to_dict` or a YAML file gives.
    path: dotted key of the result, for errors.

  Raises:
    ConfigError: with every unknown key and every refused value.
  """
  built: C = assembly.from_mapping(cls, mapping, path)
  return built


def to_yaml(config: Any) -> str:
  """Returns a config dataclass as YAML text."""
  return yaml_text.dump(to_dict(config))


def from_yaml(cls: type[C], text: str) -> C:
  """Builds a config dataclass from YAML text. Raises `ConfigError` like `from_dict`."""
  return from_dict(cls, yaml_text.read(text).values)


def _plain(value: Any, keep: Collection[str], path: str) -> Any:
  if hints.is_group(type(value)):
    return to_dict(value, keep=keep, path=path)
  if isinstance(value, Mapping):
    return {key: _plain(each, keep, f"{path}.{key}") for key, each in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(each, keep, f"{path}.{index}") for index, each in enumerate(value)]
  problem = assembly.not_plain(value)
  if problem:
    raise ConfigError.of(path, problem)
  return value
