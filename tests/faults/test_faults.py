"""Every fault that users of trainers report, played on this trainer; and what is said of the peer still holds."""

from pathlib import Path

import pytest
import tensorflow as tf  # noqa: F401 - says that these tests need it.

from tests.conftest import configure_logical_cpus
from tests.faults import asking, table
from tests.faults.answer import BEHAVES, FAULTY, Answer
from tests.faults.catalog import FAULTS
from tests.faults.probe import PROBES
from tests.faults.stack import Stack
from tests.faults.stacks import build_stack
from tests.faults.values import check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"

asking.load_probes()


def cases() -> list:
  found = []
  for fault in FAULTS:
    if fault.number not in PROBES:
      continue
    probe = PROBES[fault.number]
    marks = [] if fault.not_yet is None else [pytest.mark.skip(reason=f"not yet: {fault.not_yet}")]
    found.append(pytest.param(fault.number, id=f"{fault.number}-{probe.run.__name__}", marks=marks))
  return found


@pytest.fixture(scope="module")
def ours() -> Stack:
  configure_logical_cpus()
  return build_stack("ours")


# Together they take two minutes; most have quicker tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize("number", cases())
def test_this_trainer_behaves_where_users_report(number, ours, tmp_path):
  PROBES[number].run(ours, tmp_path)


def test_a_fault_that_shows_an_error_and_a_missing_feature_are_told_apart(monkeypatch, tmp_path, ours):
  def says(error: Exception):
    def run(stack, folder):
      raise error

    return run

  for error, answer in (
    (AssertionError("shows"), Answer(FAULTY, "shows")),
    (OSError("disk"), Answer(FAULTY, "OSError: disk")),
    (asking.NotOffered("patience"), Answer("not offered", "patience")),
  ):
    monkeypatch.setitem(PROBES, 1, PROBES[2]._replace(number=1, run=says(error)))
    assert asking.ask(ours, 1, tmp_path) == answer
  monkeypatch.setitem(PROBES, 1, PROBES[2]._replace(number=1, run=lambda stack, folder: check(True, "never said")))
  assert asking.ask(ours, 1, tmp_path) == Answer(BEHAVES)


@pytest.mark.slow
def test_the_peer_still_answers_what_the_page_says():
  recorded = {number: row.peer for number, row in table.read(PAGE.read_text("utf-8")).items() if number in PROBES}
  answers = asking.ask_in_processes("peer", PROBES)
  assert {number: answer.verdict for number, answer in answers.items()} == recorded, answers
