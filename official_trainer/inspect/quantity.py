"""Large numbers as people read them."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T", "P")


def quantity(number: int, unit: str) -> str:
  """Returns a number in three digits with a decimal prefix: "94.4 MB", "812 B"."""
  value, index = float(number), 0
  while index + 1 < len(_PREFIXES) and float(f"{value:.3g}") >= 1000:
    value, index = value / 1000, index + 1
  return f"{value:.3g} {_PREFIXES[index]}{unit}"
