"""The tests that tf-models-official ships, run from the installed package against our classes."""

import collections
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peer import exceptions

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.tensorflow

FILES = ("actions_test.py", "base_trainer_test.py", "train_lib_test.py")


def run_peer_tests(folder: Path, *, classes: str, leave_out: tuple[str, ...] = ()) -> dict:
  """Runs the files in one process and returns {test id: {outcome, failure, traceback}}."""
  core = Path(importlib.util.find_spec("official").origin).parent / "core"
  report = folder / "report.json"
  environment = {
    **os.environ,
    "PEER_CLASSES": classes,
    "PEER_REPORT": str(report),
    "PYTHONPATH": str(ROOT),
    "TMPDIR": str(folder),
  }
  environment.pop("PYTEST_ADDOPTS", None)
  process = subprocess.run(
    [
      *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={core}"),
      *("-p", "no:cacheprovider", "-p", "tests.peer.plugin", "-W", "ignore"),
      *(f"--deselect={name}" for name in leave_out),
      *(str(core / name) for name in FILES),
    ],
    cwd=folder,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  if not report.exists():
    pytest.fail(f"The peer's tests did not run:\n{process.stdout}\n{process.stderr}")
  return json.loads(report.read_text("utf-8"))


def count(results: dict) -> dict[str, dict[str, int]]:
  counts = {file: collections.Counter() for file in FILES}
  for name, result in results.items():
    counts[name.partition("::")[0]][result["outcome"]] += 1
  return {file: dict(counter) for file, counter in counts.items()}


def failures(results: dict) -> str:
  return "\n\n".join(
    f"{name}:\n{result['traceback']}"
    for name, result in sorted(results.items())
    if result["outcome"] == "failed" and name not in exceptions.EXCEPTED
  )


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict:
  pytest.importorskip("portpicker")
  return run_peer_tests(tmp_path_factory.mktemp("peer"), classes="ours", leave_out=tuple(exceptions.LEFT_OUT))


def test_the_peers_tests_pass_with_our_classes_but_for_the_listed_ones(ours):
  unexpected = failures(ours)
  assert not unexpected, unexpected


def test_a_listed_exception_still_fails_and_for_its_reason(ours):
  for name, known in exceptions.EXCEPTED.items():
    assert ours[name]["outcome"] == "failed", f"{name} passes now: take it off the list"
    assert re.search(known.fails_with, ours[name]["failure"]), ours[name]["failure"]


def test_every_test_of_the_peer_ran(ours):
  assert count(ours) == exceptions.COUNTS


@pytest.mark.slow
def test_the_harness_reproduces_the_peers_own_results_with_its_own_classes(tmp_path):
  results = run_peer_tests(tmp_path, classes="theirs")
  assert count(results) == exceptions.COUNTS_WITH_THEIR_CLASSES, failures(results)
