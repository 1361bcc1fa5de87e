"""The logs of an evaluation, which may be nested: names and values in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lookup(logs: Mapping[str, Any], metric_name: str) -> float | None:
  """Finds a metric by name in possibly nested logs, levels joined by "|". None if it is not there or not a scalar."""
  node: Any = logs.get(metric_name)
  if node is None:
    node = logs
    for key in metric_name.split("|"):
      if not isinstance(node, Mapping) or key not in node:
        return None
      node = node[key]
  try:
    return float(node)
  except (TypeError, ValueError):
    return None


def names_of(logs: Mapping[str, Any], prefix: str = "") -> list[str]:
  """Lists the names in possibly nested logs, levels joined by "|"."""
  names: list[str] = []
  for key, value in logs.items():
    names += names_of(value, f"{prefix}{key}|") if isinstance(value, Mapping) else [f"{prefix}{key}"]
  return names


def scalars_in(logs: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the scalars of possibly nested logs as Python floats, nested alike; leaves other values out."""
  kept: dict[str, Any] = {}
  for key, value in logs.items():
    if isinstance(value, Mapping):
      kept[key] = scalars_in(value)
    elif (number := lookup(logs, key)) is not None:
      kept[key] = number
  return kept
