"""What a check of a traced step finds, in the order and words in which people read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from official_trainer.user_code import Place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """One thing in a step that a device will refuse.

  Attributes:
    kind: what sort of thing it is, such as "value-dependent shape".
    op: the type of the operation, or what stands in its place.
    name: the operation's name in the graph; empty for what is no operation.
    steps: the steps it is in: "training", "evaluation".
    place: the line that made it; None where none is known.
    why: what is wrong with it.
    instead: what to do.
  """

  kind: str
  op: str
  name: str = ""
  steps: tuple[str, ...]
  place: Place | None
  why: str
  instead: str

  def __str__(self) -> str:
    steps = " and the ".join(self.steps)
    lines = [f"{self.kind}: {self.op} in the {steps} step", f"  at {self.place or 'a line that is not known'}"]
    if self.place is not None and self.place.text:
      lines.append(f"       {self.place.text}")
    if self.name and not (self.place is not None and self.place.is_users):
      lines.append(f"  operation: {self.name}")
    lines.append(f"  why: {self.why}")
    lines.append(f"  instead: {self.instead}")
    return "\n".join(lines)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
  """Joins the findings of one line: the same thing in several steps, or several times in one.

  A gradient repeats what is wrong with its operation, without the line: it is left out beside it.
  """
  joined: dict[tuple, Finding] = {}
  for finding in findings:
    key = (finding.kind, finding.op, finding.place or finding.name)
    known = joined.get(key)
    if known is None:
      joined[key] = finding
    else:
      joined[key] = dataclasses.replace(known, steps=tuple(dict.fromkeys([*known.steps, *finding.steps])))
  located = {finding.kind for finding in joined.values() if finding.place is not None and finding.place.is_users}
  return tuple(
    finding
    for finding in joined.values()
    if not (finding.kind in located and "gradient" in finding.name and not (finding.place and finding.place.is_users))
  )
