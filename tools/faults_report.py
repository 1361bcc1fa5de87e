"""Asks this trainer and the installed tf-models-official about the faults that users of trainers report.

Writes the table into docs/reliability.md, or compares with --check: `python -m tools.faults_report [--check]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults import table  # noqa: E402 - the tree is put on the path first.
from tests.faults.answer import BEHAVES, Answer  # noqa: E402
from tests.faults.catalog import BY_NUMBER  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code."""
  parser = argparse.ArgumentParser(description="Writes the table of faults into docs/reliability.md.")
  parser.add_argument("--check", action="store_true", help="compare with the page instead, and fail on a difference")
  options = parser.parse_args(arguments)
  ours, peer = ask_both()
  rows = table.rows_of(*({number: answer.verdict for number, answer in answers.items()} for answers in (ours, peer)))
  print(table.summary(rows))
  page = PAGE.read_text("utf-8")
  if not options.check:
    PAGE.write_text(table.replaced(page, table.render(rows)), "utf-8")
    print(f"written into {PAGE.relative_to(ROOT)}")
    return 0
  wrong = differences(table.read(page), rows)
  wrong += [] if table.between(page) == table.render(rows) or wrong else ["the words of the table have changed"]
  for line in wrong:
    print(line, file=sys.stderr)
  return 1 if wrong else 0


def ask_both() -> tuple[dict[int, Answer], dict[int, Answer]]:
  """Asks every probe of both, shows what is not as it should be, and returns the answers by number."""
  from tests.faults import asking
  from tests.faults.probe import PROBES

  asking.load_probes()
  here = [number for number in PROBES if BY_NUMBER[number].not_yet is None]
  ours, peer = asking.ask_in_processes("ours", here), asking.ask_in_processes("peer", PROBES)
  for name, answers in (("ours", ours), ("peer", peer)):
    show(name, answers)
  return ours, peer


def show(name: str, answers: Mapping[int, Answer]) -> None:
  """Prints a line for each answer."""
  for number, answer in answers.items():
    why = "" if answer.verdict == BEHAVES else f": {answer.why}"
    print(f"{name:5} {number:3}  {BY_NUMBER[number].title}: {answer.verdict}{why}")


def differences(recorded: Mapping[int, table.Row], found: Mapping[int, table.Row]) -> list[str]:
  """Lists what a page says otherwise than the answers."""
  return [
    f"fault {number}: the page says {recorded.get(number)}, asked now {row}"
    for number, row in found.items()
    if recorded.get(number) != row
  ]


if __name__ == "__main__":
  sys.exit(main())
