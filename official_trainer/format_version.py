"""Contents of files that older versions of this library wrote, brought into the present form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]


def upgraded(values: Values, current: int, upgrades: Mapping[int, Callable[[Values], Values]], what: str) -> Values:
  """Returns `values`, which say their `format_version`, as the current version would have written them.

  Args:
    values: what was read.
    current: the version that this library writes.
    upgrades: version -> what turns its values into those of the next version; one for each version before `current`.
    what: names what was read, for the error.

  Raises:
    ValueError: if a newer version of this library wrote them.
  """
  version = int(values["format_version"])
  if version > current:
    raise ValueError(f"{what} has format {version}; this version reads up to {current}. Update official-trainer.")
  for earlier in range(version, current):
    values = upgrades[earlier](values)
  return {**values, "format_version": current}
