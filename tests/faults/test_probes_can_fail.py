"""A probe that the peer passes, too, must still be able to fail: here each meets a stack that has its fault.

The other probes fail on the peer, which the page and its test record.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import configure_logical_cpus
from tests.faults import asking, table
from tests.faults.answer import BEHAVES
from tests.faults.probe import PROBES
from tests.faults.stack import Job, Outcome, WorkerOutcome, WorkersRun, checkpoint_steps
from tests.faults.stacks import build_stack

asking.load_probes()
configure_logical_cpus()
Ours = type(build_stack("ours"))

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


@dataclasses.dataclass
class Meddling(Ours):
  """Our stack with a fault: it changes a job before it runs, or what it leaves behind.

  Attributes:
    before: takes a job, and its folder, and returns the one to run instead.
    after: takes what a job left behind.
  """

  before: Callable[[Job, Path], Job] = lambda job, folder: job
  after: Callable[[Path, Outcome], None] = lambda folder, outcome: None

  def execute(self, folder: str, job: Job, outcome: Outcome) -> None:
    super().execute(folder, self.before(job, Path(folder)), outcome)
    self.after(Path(folder), outcome)


@dataclasses.dataclass
class Pretending(Ours):
  """Our stack, which starts no processes: it tells of one run of two workers after the other as it is told to."""

  runs: list[WorkersRun] = dataclasses.field(default_factory=list)

  def run_workers(self, folder, job: Job) -> WorkersRun:
    return self.runs.pop(0)


def two_workers(codes=(0, 0), said=("", ""), trained=((), ())) -> WorkersRun:
  outcomes = [Outcome(step=6, trained=[list(batch) for batch in batches]) for batches in trained]
  return WorkersRun([WorkerOutcome(*one) for one in zip(codes, said, outcomes, strict=True)], [])


def shares(first: Callable[[int], list[int]], second: Callable[[int], list[int]]) -> WorkersRun:
  """Returns a run of six steps in which the workers trained on these examples of each step."""
  return two_workers(trained=[[share(4 * step % 20) for step in range(6)] for share in (first, second)])


CRASH = "Crash: before batch 4 of worker 1"
LOST = "step 4/40\nPeerLost: worker 1 is gone"
ENDED = two_workers()
GOOD_WORKERS = {
  56: [shares(lambda i: [i, i + 1], lambda i: [i + 2, i + 3])],
  68: [two_workers((42, 1), (LOST, CRASH)), ENDED],
}
"""number -> runs that have no fault."""
FAULTY_WORKERS = {
  "both read everything": (56, [shares(lambda i: [i, i + 1, i + 2, i + 3], lambda i: [i, i + 1, i + 2, i + 3])]),
  "both read one half": (56, [shares(lambda i: [i, i + 1], lambda i: [i, i + 1])]),
  "one reads nothing": (56, [shares(lambda i: [i, i + 1, i + 2, i + 3], lambda i: [])]),
  "one waits for ever": (68, [two_workers((-9, 1), (LOST, CRASH)), ENDED]),
  "one says nothing of the other": (68, [two_workers((42, 1), ("worker 1 answers\nPeerLost", CRASH)), ENDED]),
  "a failure is a success": (68, [two_workers((0, 1), (LOST, CRASH)), ENDED]),
  "one waits where the data end": (68, [two_workers((42, 1), (LOST, CRASH)), two_workers((0, -9))]),
}
"""Runs that have a fault -> its number, and what a probe is told."""


def resumes(folder: Path) -> bool:
  return bool(checkpoint_steps(folder))


def forgets(job: Job, folder: Path) -> Job:
  """Starts anew where there is something to go on from."""
  shutil.rmtree(folder, ignore_errors=True)
  return job


def forgets_the_best(job: Job, folder: Path) -> Job:
  """Takes every evaluation for the best."""
  score = job.score
  return job.but(score=lambda step: score(step) + step if score else 0.0)


def other_rate_when_resumed(job: Job, folder: Path) -> Job:
  change = {"trainer.optimizer_config.learning_rate.cosine.initial_learning_rate": 0.0123}
  return job.but(config=change, allowed_changes=["trainer"]) if resumes(folder) else job


def other_average_when_resumed(job: Job, folder: Path) -> Job:
  change = {"trainer.optimizer_config.ema.average_decay": 0.1}
  return job.but(config=change, allowed_changes=["trainer"]) if resumes(folder) else job


def other_data_when_resumed(job: Job, folder: Path) -> Job:
  return job.but(num_examples=5) if resumes(folder) else job


def leaks(job: Job, folder: Path) -> Job:
  """Keeps 32 MB of each evaluation: enough to be seen in a process that other tests have made large."""
  kept, score = [], job.score

  def keep(step: int) -> float:
    kept.append(np.ones(1 << 22))
    return score(step)

  return job.but(score=keep)


def keeps_all_outputs(job: Job, folder: Path) -> Job:
  kept, listener = [], job.on_eval

  def keep(ids: np.ndarray) -> None:
    kept.append(np.ones(1 << 17))
    listener(ids)

  return job.but(on_eval=keep)


def loses_the_last(folder: Path, outcome: Outcome) -> None:
  for path in folder.glob("ckpt-6.*"):
    path.unlink()


def saves_what_comes_later(folder: Path, outcome: Outcome) -> None:
  for path in folder.glob("ckpt-20.*"):
    if (later := folder / path.name.replace("-20.", "-40.")).exists():
      shutil.copy(later, path)


def traces_each_call(folder: Path, outcome: Outcome) -> None:
  outcome.traces["validation"] += 3


FAULTS = {
  17: Meddling(before=forgets_the_best),
  18: Meddling(before=forgets_the_best),
  21: Meddling(before=lambda job, folder: job.but(num_validation=8)),
  26: Meddling(before=other_average_when_resumed),
  30: Meddling(before=lambda job, folder: job.but(initial=(1.0, 1.0, 1.0))),
  35: Meddling(before=other_rate_when_resumed),
  37: Meddling(before=lambda job, folder: job.but(nan_ids=())),
  39: Meddling(after=loses_the_last),
  44: Meddling(before=forgets),
  46: Meddling(before=lambda job, folder: job.but(num_validation=9)),
  49: Meddling(before=forgets),
  54: Meddling(before=keeps_all_outputs),
  56: Pretending(runs=list(FAULTY_WORKERS["both read everything"][1])),
  63: Meddling(before=other_data_when_resumed),
  67: Meddling(before=leaks),
  68: Pretending(runs=list(FAULTY_WORKERS["one waits for ever"][1])),
  70: Meddling(before=lambda job, folder: job.but(on_train=lambda ids: print("step"))),
  71: Meddling(after=traces_each_call),
  75: Meddling(before=lambda job, folder: job.but(shuffle=False)),
  76: Meddling(after=saves_what_comes_later),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", FAULTS)
def test_a_probe_that_both_pass_fails_where_the_fault_is(number, tmp_path):
  with pytest.raises(AssertionError):
    PROBES[number].run(FAULTS[number], tmp_path)


@pytest.mark.parametrize("case", FAULTY_WORKERS)
def test_a_probe_of_workers_tells_a_faulty_run_from_a_good_one(case, tmp_path):
  number, runs = FAULTY_WORKERS[case]
  PROBES[number].run(Pretending(runs=list(GOOD_WORKERS[number])), tmp_path)
  with pytest.raises(AssertionError):
    PROBES[number].run(Pretending(runs=list(runs)), tmp_path)


def test_every_probe_that_the_peer_passes_is_among_them():
  rows = table.read(PAGE.read_text("utf-8"))
  assert sorted(FAULTS) == [number for number, row in rows.items() if row.peer == BEHAVES]
