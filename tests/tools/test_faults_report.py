"""The command that writes and checks the table of faults, with answers made up."""

import pytest

from tests.faults import table
from tests.faults.answer import BEHAVES, FAULTY, Answer
from tools import faults_report

OURS = {2: Answer(BEHAVES), 3: Answer(BEHAVES)}
PEER = {2: Answer(FAULTY, "it starts over"), 3: Answer(BEHAVES)}


@pytest.fixture
def page(monkeypatch, tmp_path):
  """A page without a table yet."""
  path = tmp_path / "docs" / "reliability.md"
  path.parent.mkdir()
  path.write_text(f"# Title\n\n{table.BEGIN}\n{table.END}\n\nMore.\n", "utf-8")
  monkeypatch.setattr(faults_report, "ROOT", tmp_path)
  monkeypatch.setattr(faults_report, "PAGE", path)
  monkeypatch.setattr(faults_report, "ask_both", lambda: (OURS, PEER))
  return path


def test_what_is_written_passes_the_check_and_keeps_the_rest_of_the_page(page):
  assert faults_report.main([]) == 0
  assert faults_report.main(["--check"]) == 0
  text = page.read_text("utf-8")
  assert text.startswith("# Title\n") and text.endswith("\n\nMore.\n")
  assert table.read(text)[2] == (BEHAVES, FAULTY)


def test_the_check_names_the_fault_that_is_answered_otherwise_and_changes_nothing(page, monkeypatch, capsys):
  faults_report.main([])
  before = page.read_text("utf-8")
  monkeypatch.setattr(faults_report, "ask_both", lambda: (OURS, {**PEER, 3: Answer(FAULTY, "NaN")}))
  assert faults_report.main(["--check"]) == 1
  said = capsys.readouterr().err
  assert "fault 3: the page says" in said and "fault 2:" not in said
  assert page.read_text("utf-8") == before


def test_the_check_notices_other_words_under_the_same_verdicts(page, capsys):
  faults_report.main([])
  text = page.read_text("utf-8")
  page.write_text(text.replace("One NaN blocks every later best", "A NaN"), "utf-8")
  assert faults_report.main(["--check"]) == 1
  assert "the words of the table have changed" in capsys.readouterr().err


def test_each_answer_is_shown_with_what_showed(capsys):
  faults_report.show("peer", PEER)
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith("peer") and lines[0].endswith("has the fault: it starts over")
  assert lines[1].endswith("One NaN blocks every later best: behaves")
