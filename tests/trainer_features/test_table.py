"""The table of what other trainers do: complete, and made from the names of the tests."""

import pytest

from tests.trainer_features import table
from tests.trainer_features.rows import BY_NUMBER, ROWS, TRAINERS, Row
from tests.trainer_features.table import NamedTest
from tools import trainer_features

SOME = (Row("T1", "One thing."), Row("T2", "Another.", "comes later"), Row("M1", "A third."))


def test_the_rows_are_numbered_without_a_hole():
  numbers = [f"{letter}{n + 1}" for letter, last in zip(TRAINERS, (69, 66, 36), strict=True) for n in range(last)]
  assert [row.number for row in ROWS] == numbers
  assert list(BY_NUMBER) == numbers


def test_every_row_has_a_test_or_a_reason_and_the_page_says_so(capsys):
  code = trainer_features.main(["--check"])
  assert code == 0, capsys.readouterr().err


@pytest.fixture
def folder(tmp_path):
  def write(text):
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "test_it.py").write_text(text, "utf-8")
    return tmp_path

  return write


def test_tests_are_found_by_the_numbers_that_their_names_begin_with(folder):
  found = table.find_tests(
    folder(
      "def test_t1_m1_it_works(): pass\n"
      "class Several:\n  def test_d12_inside(self): pass\n"
      "def test_t1(): pass\ndef test_t1x_y(): pass\ndef test_it_t1_works(): pass\n"
    )
  )
  assert [(test.name, test.rows) for test in found] == [
    ("test_t1_m1_it_works", ("T1", "M1")),
    ("test_d12_inside", ("D12",)),
  ]
  assert {test.path for test in found} == {"run/test_it.py"}


@pytest.mark.parametrize("mark", ["skip", "skip(reason='later')", "xfail(strict=True)"])
def test_a_test_that_need_not_pass_stands_for_nothing(folder, mark):
  assert table.find_tests(folder(f"@pytest.mark.{mark}\ndef test_t1_a(): pass\n")) == []
  assert len(table.find_tests(folder("@pytest.mark.slow\ndef test_t1_a(): pass\n"))) == 1


def test_what_is_missing_and_what_is_too_much_is_named():
  tests = [NamedTest("a.py", "test_t1_t70_a", ("T1", "T70")), NamedTest("b.py", "test_t2_b", ("T2",))]
  assert table.problems(SOME, tests) == [
    "T2 has a test: test_t2_b; take the gap off the row",
    "M1 has no test: name one test_m1_..., or give the row a gap",
    "a.py::test_t1_t70_a: there is no row T70",
  ]


def test_the_page_links_the_tests_of_a_row_and_gives_the_reason_of_one_without():
  text = table.render(SOME, [NamedTest("a.py", "test_t1_a", ("T1",)), NamedTest("b.py", "test_t1_b", ("T1",))])
  assert "Of 3 behaviours 1 have a test. The other 2 say why not." in text
  assert "| T1 | One thing. | [a.py::test_t1_a](../tests/a.py)<br>[b.py::test_t1_b](../tests/b.py) |\n" in text
  assert "| T2 | Another. | *none: comes later* |\n" in text
  assert "| M1 | A third. | **none** |\n" in text
  assert text.index("| T2 |") < text.index(f"## {TRAINERS['M']}") < text.index("| M1 |")
