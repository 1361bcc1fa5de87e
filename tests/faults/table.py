"""The table "fault, ours, peer": made from answers, written into a page, read back from it. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.faults.answer import BEHAVES, FAULTY, NOT_ASKED, NOT_YET
from tests.faults.catalog import FAULTS

BEGIN = "<!-- faults: begin, written by make faults-report -->"
END = "<!-- faults: end -->"
_HEAD = ("", "about", "fault", "right is", "here", "peer")


class Row(NamedTuple):
  """The verdicts about one fault."""

  ours: str
  peer: str


def rows_of(ours: Mapping[int, str], peer: Mapping[int, str]) -> dict[int, Row]:
  """Joins verdicts by the number of their fault; what was not asked says so, or says what is missing."""
  rows = {}
  for fault in FAULTS:
    missing = NOT_ASKED if fault.not_yet is None else f"{NOT_YET}: {fault.not_yet}"
    rows[fault.number] = Row(ours.get(fault.number, missing), peer.get(fault.number, NOT_ASKED))
  return rows


def render(rows: Mapping[int, Row]) -> str:
  """Returns the table in Markdown, with its counts above."""
  lines = [summary(rows), "", _line(_HEAD), _line(["---"] * len(_HEAD))]
  for fault in FAULTS:
    row = rows[fault.number]
    lines.append(_line([str(fault.number), fault.area, fault.title, fault.right, row.ours, row.peer]))
  return "\n".join(lines) + "\n"


def summary(rows: Mapping[int, Row]) -> str:
  """Says in a sentence how often each verdict stands on each side."""
  ours, peer = ([row[side] for row in rows.values()] for side in (0, 1))
  missing = sum(verdict.startswith(NOT_YET) for verdict in ours)
  return (
    f"Of {len(rows)} faults this trainer shows {ours.count(FAULTY)} and behaves in {ours.count(BEHAVES)}; for {missing}"
    f" it lacks what they are about. The peer was asked about {len(rows) - peer.count(NOT_ASKED)}: it shows"
    f" {peer.count(FAULTY)} and behaves in {peer.count(BEHAVES)}."
  )


def read(page: str) -> dict[int, Row]:
  """Returns the rows of the table in a page.

  Raises:
    ValueError: if the page has no table between its marks.
  """
  rows = {}
  for line in between(page).splitlines():
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) == len(_HEAD) and cells[0].isdigit():
      rows[int(cells[0])] = Row(cells[4], cells[5])
  return rows


def between(page: str) -> str:
  """Returns what stands between the marks of a page."""
  before, begin, rest = page.partition(BEGIN)
  inside, end, _ = rest.partition(END)
  if not begin or not end:
    raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}; the table stands between them.")
  return inside.strip("\n") + "\n"


def replaced(page: str, text: str) -> str:
  """Returns the page with `text` between its marks."""
  between(page)
  before, _, rest = page.partition(BEGIN)
  after = rest.partition(END)[2]
  return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
  return "| " + " | ".join(cells) + " |"
