"""What an initialisation does, in lists: the report, and the error where something does not fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from official_trainer.config.nearest import meant
from official_trainer.errors import CheckpointMismatch

_MOST_UNUSED = 30


@dataclasses.dataclass(frozen=True)
class Spec:
  """Shape and type of a value: `dtype` is TensorFlow's name for it."""

  shape: tuple[int, ...]
  dtype: str = "float32"

  def takes(self, other: Spec) -> bool:
    """Whether a value of `other` can be put into a variable of this shape and type; floating types are converted."""
    return self.shape == other.shape and self.takes_type(other)

  def takes_type(self, other: Spec) -> bool:
    return self.dtype == other.dtype or (self.is_floating and other.is_floating)

  @property
  def is_floating(self) -> bool:
    return self.dtype.startswith(("float", "bfloat"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitReport:
  """What an initialisation does, or would do. Every variable below `target_prefix` is in exactly one of the first five.

  Attributes:
    key: the setting, such as "task.init".
    source: the file, and what was done to its names.
    loaded: variable -> name of its value.
    skipped: variables that keep their initial values because `skip` says so.
    given: variables to which another source, which comes first, gives values.
    missing: variables for which there is no value -> their shape and type.
    mismatched: variables whose value does not fit -> (the variable's, the value's) shape and type.
    resized: variable among `loaded` -> name of the function that brings its value to the variable's shape.
    unused: names in the file, below `source_prefix`, that lead to no variable -> shape and type.
  """

  key: str
  source: str
  loaded: Mapping[str, str]
  skipped: tuple[str, ...]
  given: tuple[str, ...]
  missing: Mapping[str, Spec]
  mismatched: Mapping[str, tuple[Spec, Spec]]
  resized: Mapping[str, str]
  unused: Mapping[str, Spec]

  def summary(self) -> str:
    """Returns one line for the log."""
    counts = [
      (len(self.skipped), "skipped"),
      (len(self.resized), "resized"),
      (len(self.given), "given before"),
      (len(self.unused), "of the file unused"),
    ]
    more = ", ".join(f"{count} {what}" for count, what in counts if count)
    return f"{self.key}: {len(self.loaded)} variables initialised from {self.source}" + (f" ({more})" if more else "")

  def text(self) -> str:
    """Returns all lists, for a file."""
    lines = [self.summary()]
    lines += _list("loaded", [self._origin(variable) for variable in self.loaded])
    lines += _list("skipped", [f". {name}" for name in self.skipped])
    lines += _list("given before", [f". {name}" for name in self.given])
    lines += _differences(self.missing, self.mismatched)
    lines += _list("in the checkpoint, not used", [f"+ {_shown(n, spec)}" for n, spec in self.unused.items()])
    return "\n".join(lines) + "\n"

  def _origin(self, variable: str) -> str:
    name = self.loaded[variable]
    origin = "" if name == variable else f" <- {name}"
    return f"= {variable}{origin}" + (f" by {self.resized[variable]}" if variable in self.resized else "")

  def require_complete(self, *, allow_unused: bool = True) -> None:
    """Checks that every variable has its value, or was skipped.

    Raises:
      CheckpointMismatch: with all names that lack theirs, and what to write to go on without.
    """
    unfit = [*self.missing, *self.mismatched]
    refused = {} if allow_unused else self.unused
    if not unfit and not refused:
      return
    lines = [f"cannot initialise from {self.source}:"]
    lines += _differences(self.missing, self.mismatched, self.unused)
    unused = [f"+ {_shown(name, spec)}" for name, spec in self.unused.items()]
    if len(unused) > _MOST_UNUSED and not refused:
      unused[_MOST_UNUSED:] = [f"and {len(unused) - _MOST_UNUSED} more"]
    lines += _list("in the checkpoint, not used", unused, len(self.unused))
    if unfit:
      lines.append(f"Map names with `{self.key}.name_map`, or add these to `{self.key}.skip` to keep initial values:")
      lines += [f"  - '^{re.escape(name)}$'" for name in unfit]
    if refused:
      lines.append(f"What is not used is an error because `{self.key}.allow_unused` is false.")
    raise CheckpointMismatch("\n".join(lines))


def _differences(
  missing: Mapping[str, Spec], mismatched: Mapping[str, tuple[Spec, Spec]], unused: Collection[str] = ()
) -> list[str]:
  lines = _list(
    "in the model, not in the checkpoint",
    [f"- {_shown(path, spec)}{meant(path, unused)}" for path, spec in missing.items()],
  )
  for title, alike in (("shapes differ", True), ("types differ", False)):
    pairs = {path: (mine, its) for path, (mine, its) in mismatched.items() if mine.takes_type(its) == alike}
    lines += _list(title, [f"! {path} {_pair(mine, its, alike)}" for path, (mine, its) in pairs.items()])
  return lines


def _pair(mine: Spec, its: Spec, shapes_only: bool) -> str:
  if shapes_only:
    return f"{list(mine.shape)} vs {list(its.shape)}"
  return f"{mine.dtype} {list(mine.shape)} vs {its.dtype} {list(its.shape)}"


def _shown(name: str, spec: Spec) -> str:
  return f"{name} {list(spec.shape)}"


def _list(title: str, items: Sequence[str], count: int | None = None) -> list[str]:
  return [f"  {title} ({len(items) if count is None else count}):", *(f"    {item}" for item in items)] if items else []
