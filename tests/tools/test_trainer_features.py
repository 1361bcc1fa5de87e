"""The command that writes and checks the table of what other trainers do, over tests made up."""

import pytest

from tests.trainer_features.rows import Row
from tools import trainer_features

ROWS = (Row("T1", "One thing."), Row("T2", "Another.", "comes later"))


@pytest.fixture
def page(monkeypatch, tmp_path):
  (tmp_path / "docs").mkdir()
  (tmp_path / "tests").mkdir()
  (tmp_path / "tests" / "test_it.py").write_text("def test_t1_it_works(): pass\n", "utf-8")
  path = tmp_path / "docs" / "trainer_features.md"
  for name, value in {"ROOT": tmp_path, "TESTS": tmp_path / "tests", "PAGE": path, "ROWS": ROWS}.items():
    monkeypatch.setattr(trainer_features, name, value)
  return path


def test_what_is_written_passes_the_check(page, capsys):
  assert trainer_features.main(["--check"]) == 1
  assert "is not what the tests say; run: make trainer-features" in capsys.readouterr().err
  assert trainer_features.main([]) == 0
  assert "test_t1_it_works" in page.read_text("utf-8")
  assert trainer_features.main(["--check"]) == 0


def test_a_test_that_goes_away_is_noticed(page, capsys):
  trainer_features.main([])
  (page.parents[1] / "tests" / "test_it.py").write_text("", "utf-8")
  assert trainer_features.main(["--check"]) == 1
  said = capsys.readouterr().err
  assert "T1 has no test" in said and "is not what the tests say" in said
  assert trainer_features.main([]) == 1  # Written, and still not complete.
