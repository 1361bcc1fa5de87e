"""The list of faults and the table that is made from it, without running anything."""

import ast
import re
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.answer import BEHAVES, FAULTY, NOT_ASKED, NOT_OFFERED, NOT_YET
from tests.faults.catalog import BY_NUMBER, FAULTS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"


def numbers_of_probes() -> list[int]:
  found = []
  for path in HERE.glob("probes_*.py"):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
      if isinstance(node, ast.Call) and ast.unparse(node.func) == "probe":
        found.append(ast.literal_eval(node.args[0]))
  return sorted(found)


def test_the_faults_are_numbered_from_1_to_78():
  assert [fault.number for fault in FAULTS] == list(range(1, 79))


def test_every_fault_has_one_probe_or_says_what_is_missing():
  probes = numbers_of_probes()
  assert len(probes) == len(set(probes))
  assert [n for n, fault in BY_NUMBER.items() if fault.not_yet is None and n not in probes] == []
  assert [n for n in probes if n not in BY_NUMBER] == []


def test_the_page_holds_a_row_for_each_fault_and_no_fault_of_ours():
  page = PAGE.read_text("utf-8")
  rows = table.read(page)
  assert sorted(rows) == [fault.number for fault in FAULTS]
  for fault in FAULTS:
    expected = BEHAVES if fault.not_yet is None else f"{NOT_YET}: {fault.not_yet}"
    assert rows[fault.number].ours == expected, fault
    assert rows[fault.number].peer in (BEHAVES, FAULTY, NOT_OFFERED, NOT_ASKED), fault
    assert (rows[fault.number].peer != NOT_ASKED) == (fault.number in numbers_of_probes()), fault


def test_the_page_says_what_the_catalog_says():
  page = PAGE.read_text("utf-8")
  assert table.between(page) == table.render(table.read(page))


def test_what_is_written_into_a_page_is_read_back_and_the_rest_stays():
  page = f"before\n\n{table.BEGIN}\n\nan older table\n\n{table.END}\n\nafter\n"
  rows = table.rows_of({2: BEHAVES}, {2: FAULTY})
  written = table.replaced(page, table.render(rows))
  assert table.read(written) == rows
  missing = next(fault for fault in FAULTS if fault.not_yet is not None)
  assert rows[2] == (BEHAVES, FAULTY) and rows[3].ours == NOT_ASKED
  assert rows[missing.number].ours == f"{NOT_YET}: {missing.not_yet}"
  assert written.startswith("before\n\n") and written.endswith("\n\nafter\n") and "an older table" not in written
  assert table.replaced(written, table.render(rows)) == written


def test_a_page_without_marks_is_refused():
  with pytest.raises(ValueError, match=re.escape("the table stands between them")):
    table.replaced("no marks", "")
