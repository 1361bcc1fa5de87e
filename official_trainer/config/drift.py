"""What differs between the config of a run's last start and the present one."""

from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.config import yaml_text


def changed_keys(before: str, after: str) -> list[str]:
  """Lists the keys that differ between two params.yaml texts, as "key: old -> new", in the order of the keys."""
  old, new = (
    dict(_leaves(yaml_text.read(before).values)),
    dict(_leaves(yaml_text.read(after).values)),
  )
  missing = "(not there)"
  return [
    f"{key}: {old.get(key, missing)} -> {new.get(key, missing)}"
    for key in sorted(old.keys() | new.keys())
    if old.get(key, missing) != new.get(key, missing)
  ]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  for key, value in values.items():
    if isinstance(value, Mapping) and value:
      yield from _leaves(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}", value
