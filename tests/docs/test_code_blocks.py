"""The Python blocks of the documentation run, and the first task trains as its page says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages

RUN = [page for page in pages.PAGES if any(not block.file for block in pages.blocks(page, "python"))]


def run(*command: str, cwd: Path) -> str:
  paths = [str(pages.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
  process = subprocess.run(
    command,
    cwd=cwd,
    env={
      **os.environ,
      "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
      "PYTHONPATH": os.pathsep.join(paths),
    },
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
  return process.stdout


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("page", RUN, ids=pages.name_of)
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path):
  pages.write_files(page, tmp_path)
  lines = [""] * page.read_text("utf-8").count("\n")
  for block in pages.blocks(page, "python"):
    if not block.file:
      text = block.text.splitlines()
      lines[block.line - 1 : block.line - 1 + len(text)] = text  # So that errors name the page's own lines.
  path = tmp_path / f"{page.stem}_blocks.py"
  path.write_text("\n".join(lines), "utf-8")
  run(sys.executable, str(path), cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_tests_of_the_first_task_pass_as_their_page_says(tmp_path):
  page = pages.ROOT / "docs/how_to/test_your_task.md"
  pages.write_files(pages.ROOT / "docs/how_to/new_task.md", tmp_path)
  pages.write_files(page, tmp_path)
  for block in pages.blocks(page, "shell"):
    assert " 1 passed" in run("bash", "-euc", block.text, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_first_task_trains_as_its_page_says(tmp_path):
  page = pages.ROOT / "docs/how_to/new_task.md"
  pages.write_files(page, tmp_path)
  for block in pages.blocks(page, "shell"):
    run("bash", "-euc", block.text, cwd=tmp_path)
  for name in ("flowers", "flowers_averaged", "flowers_pipeline"):
    rows = [json.loads(line) for line in (tmp_path / "runs" / name / "history.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["mode"] == "validation"][-1]
    assert last["step"] == 300
    assert last["metrics"]["accuracy"] > 0.9
