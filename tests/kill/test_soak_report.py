import pytest

from tests.kill import soak_report
from tests.kill.driver import Kill
from tests.kill.soak_report import BEGIN, END, Soaked


def test_the_report_takes_the_place_of_the_one_before(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
  kills = (Kill(-1, False, ""), Kill(40, True, ""), Kill(60, False, ""))
  soak_report.write(page, [Soaked("one device", 2, kills)], 600)
  text = page.read_text("utf-8")
  assert text.startswith(
    f"before\n{BEGIN}\n\n3 SIGKILLs in 1 runs of 600 steps: 1 of them before the first report, 1 in"
  )
  assert "| one device | 2 | - 40 60 | equal |\n\n" + END + "\nafter\n" in text and "old" not in text


def test_a_page_without_a_place_for_it_is_refused(tmp_path):
  page = tmp_path / "page.md"
  page.write_text("nothing", "utf-8")
  with pytest.raises(ValueError, match="has no place for the report"):
    soak_report.write(page, [], 600)
