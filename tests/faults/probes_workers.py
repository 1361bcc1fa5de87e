"""Faults of several processes that train together: two of them, of one replica each."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.faults import tiny_task
from tests.faults.probe import probe
from tests.faults.stack import Job, Stack, WorkersRun, checkpoint_steps
from tests.faults.values import check, same_bits
from tests.faults.workers import CrashOfWorker

TRAIN = Job(mode="train", layers="batchnorm")
"""Six steps with three saves. The statistics of the batches are reduced over the workers for each save."""
TRAINED_VARIABLES = (0, 1, 2, 3, 6, 7)
"""Those of the "batchnorm" model that an optimizer changes: all but its moving mean and variance."""
KILLED = -signal.SIGKILL


class Trained(NamedTuple):
  """What two workers of a stack left behind that trained six steps on one file of 20 examples."""

  folder: Path
  job: Job
  run: WorkersRun


_TRAINED: list[tuple[Stack, tempfile.TemporaryDirectory[str], Trained]] = []


def trained(stack: Stack) -> Trained:
  """Trains once for each stack: the start of two processes serves several probes. Nobody changes the folder."""
  for known, _, result in _TRAINED:
    if known is stack:
      return result
  place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
  job = TRAIN.but(file=str(Path(place.name, "examples.tfrecord")))
  tiny_task.write_examples(job, str(job.file))
  folder = Path(place.name, "run")
  result = Trained(folder, job, stack.run_workers(folder, job))
  _TRAINED.append((stack, place, result))
  return result


def require_ends(run: WorkersRun, steps: int) -> None:
  """Checks that every worker got to this step, and ended well."""
  reached = [worker.outcome.step if worker.outcome else None for worker in run.workers]
  check(reached == [steps] * len(run.workers), f"asked for {steps} steps, the workers ended at {reached}")
  check(codes(run) == [0] * len(run.workers), f"the workers ended with {codes(run)}: {run.workers[0].said[-500:]}")


def codes(run: WorkersRun) -> list[int]:
  return [worker.returncode for worker in run.workers]


@probe(1)
def only_the_chief_is_restored(stack: Stack, folder: Path) -> None:
  before = trained(stack)
  require_ends(before.run, 6)
  shutil.copytree(before.folder, folder / "run")
  # At a rate of zero the weights that a worker ends with are those that it began with.
  still = {"trainer.train_steps": 8, "trainer.optimizer_config.learning_rate.constant.learning_rate": 0.0}
  after = stack.run_workers(folder / "run", before.job.but(config=still, allowed_changes=["trainer"]))
  require_ends(after, 8)
  for index, worker in enumerate(after.workers):
    check(len(worker.outcome.trained) == 2, f"worker {index} trained {len(worker.outcome.trained)} steps from 6 to 8")
    old, new = ([outcome.weights[i] for i in TRAINED_VARIABLES]
                for outcome in (before.run.workers[0].outcome, worker.outcome))  # fmt: skip
    check(same_bits(old, new), f"worker {index} did not go on from the weights that were saved")


@probe(55)
def only_one_process_takes_part_in_a_save(stack: Stack, folder: Path) -> None:
  place, _, run = trained(stack)
  require_ends(run, 6)
  saved = checkpoint_steps(place)
  check({2, 4, 6} <= set(saved), f"of the saves at steps 2, 4 and 6 there are {saved}")
  curves = [path.name for path in (place / "train").glob("events.*")]
  check(len(curves) == 1, f"the curves of one run are in {len(curves)} files: not only the chief wrote")
  unfinished = [path.name for path in place.rglob("*") if "temp" in path.name]
  check(not unfinished, f"the folder of the run holds {unfinished}")
  number = len(run.temporary_folders)
  check(number == 0, f"temporary folders that stayed behind with what was saved for nothing: {number}")


@probe(56)
def sharding_fails_for_one_file_or_does_nothing(stack: Stack, folder: Path) -> None:
  _, job, run = trained(stack)
  require_ends(run, 6)
  epoch = job.num_examples // job.batch_size
  shares = [[i for batch in worker.outcome.trained[:epoch] for i in batch] for worker in run.workers]
  check(all(len(share) == job.num_examples // 2 for share in shares), f"shares of {list(map(len, shares))} examples")
  seen = sorted(i for share in shares for i in share)
  check(seen == list(range(job.num_examples)), f"one epoch of both workers has {len(set(seen))} different examples")


@probe(68)
def workers_hang_when_one_fails(stack: Stack, folder: Path) -> None:
  job = Job(mode="train", config={"trainer.train_steps": 40})
  run = stack.run_workers(folder / "raises", job.but(on_train=CrashOfWorker(worker=1, number=4)))
  chief, other = run.workers
  check("before batch 4 of worker 1" in other.said, f"worker 1 ended with {other.returncode} and did not say why")
  check(KILLED not in codes(run) and 0 not in codes(run), f"worker 1 failed; the exit codes are {codes(run)}")
  named = re.search(r"(Error|PeerLost)\b.*?(\bworker 1\b|/task:1\b)", chief.said, re.DOTALL)
  check(named, f"worker 0 does not say who failed: {chief.said[-500:]}")
  # Batches of two examples for each worker: one has five, the other four, or one that is empty.
  ends = job.but(file=str(folder / "examples.tfrecord"), num_examples=17, repeat=False)
  tiny_task.write_examples(ends, str(ends.file))
  run = stack.run_workers(folder / "ends", ends)
  check(KILLED not in codes(run), f"the data of one worker ended; the exit codes are {codes(run)}")
