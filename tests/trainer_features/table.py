"""Finds the tests that are named after rows, and makes the page that shows them. No TensorFlow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.trainer_features.rows import TRAINERS, Row

_NAME = re.compile(r"test_((?:[tdm]\d+_)+)")
# A test that is never run, or need not pass, stands for nothing.
_IDLE_MARKS = ("skip", "xfail")

_TOP = """# What other trainers do

<!-- Written by `make trainer-features` from the names of the tests and tests/trainer_features/rows.py. -->

The behaviours of three other trainers, in the form that they have here, and the tests that are named after each.
"""


class NamedTest(NamedTuple):
  """A test and the rows that it is named after."""

  path: str
  name: str
  rows: tuple[str, ...]


def find_tests(folder: Path) -> list[NamedTest]:
  """Lists the tests below a folder that are named after rows, by file and place; judged by the text of the files."""
  found = []
  for path in sorted(folder.rglob("*.py")):
    for function in _functions(ast.parse(path.read_text("utf-8"))):
      match = _NAME.match(function.name)
      if match and not any(_is_idle(decorator) for decorator in function.decorator_list):
        rows = tuple(number.upper() for number in match.group(1).rstrip("_").split("_"))
        found.append(NamedTest(path.relative_to(folder).as_posix(), function.name, rows))
  return found


def by_row(tests: Sequence[NamedTest]) -> dict[str, list[NamedTest]]:
  """Returns number of a row -> the tests that are named after it."""
  tests_of: dict[str, list[NamedTest]] = {}
  for test in tests:
    for number in test.rows:
      tests_of.setdefault(number, []).append(test)
  return tests_of


def problems(rows: Sequence[Row], tests: Sequence[NamedTest]) -> list[str]:
  """Lists the rows without a test or a reason, those with both, and the tests of rows that are not there."""
  tests_of, known = by_row(tests), {row.number for row in rows}
  lines = []
  for row in rows:
    if row.number not in tests_of and row.gap is None:
      lines.append(f"{row.number} has no test: name one test_{row.number.lower()}_..., or give the row a gap")
    if row.number in tests_of and row.gap is not None:
      lines.append(f"{row.number} has a test: {tests_of[row.number][0].name}; take the gap off the row")
  for test in tests:
    lines += [f"{test.path}::{test.name}: there is no row {number}" for number in test.rows if number not in known]
  return lines


def render(rows: Sequence[Row], tests: Sequence[NamedTest]) -> str:
  """Returns the page: a table for each trainer."""
  tests_of = by_row(tests)
  gaps = [row for row in rows if row.number not in tests_of]
  parts = [_TOP, f"Of {len(rows)} behaviours {len(rows) - len(gaps)} have a test. The other {len(gaps)} say why not.\n"]
  for letter, trainer in TRAINERS.items():
    lines = [f"## {trainer}", "", "| | behaviour | tests |", "| --- | --- | --- |"]
    lines += [_line(row, tests_of) for row in rows if row.number.startswith(letter)]
    parts.append("\n".join(lines) + "\n")
  return "\n".join(parts)


def _line(row: Row, tests_of: Mapping[str, Sequence[NamedTest]]) -> str:
  tests = [f"[{test.path}::{test.name}](../tests/{test.path})" for test in tests_of.get(row.number, ())]
  missing = f"*none: {row.gap}*" if row.gap else "**none**"
  return f"| {row.number} | {row.behaviour} | {'<br>'.join(tests) or missing} |"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
  return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _is_idle(decorator: ast.expr) -> bool:
  node = decorator.func if isinstance(decorator, ast.Call) else decorator
  return isinstance(node, ast.Attribute) and node.attr in _IDLE_MARKS
