"""Writes docs/trainer_features.md: what other trainers do, and the tests of each behaviour.

`python -m tools.trainer_features [--check]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.trainer_features import table  # noqa: E402 - the tree is put on the path first.
from tests.trainer_features.rows import ROWS  # noqa: E402

TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "trainer_features.md"


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code: 1 if a row has neither test nor reason, or a test no row."""
  parser = argparse.ArgumentParser(description="Writes docs/trainer_features.md from the names of the tests.")
  parser.add_argument("--check", action="store_true", help="compare with the page instead, and fail on a difference")
  options = parser.parse_args(arguments)
  tests = table.find_tests(TESTS)
  wrong = table.problems(ROWS, tests)
  text = table.render(ROWS, tests)
  if not options.check:
    PAGE.write_text(text, "utf-8")
    print(f"written into {PAGE.relative_to(ROOT)}")
  elif not PAGE.exists() or PAGE.read_text("utf-8") != text:
    wrong.append(f"{PAGE.relative_to(ROOT)} is not what the tests say; run: make trainer-features")
  for line in wrong:
    print(line, file=sys.stderr)
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
