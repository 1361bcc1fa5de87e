"""Several processes that train one job together, on this machine; every one is bounded in time. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np

from official_trainer.processes.local_cluster import LocalCluster
from tests.faults.stack import Crash, Job, Outcome, WorkerOutcome, WorkersRun

ROOT = Path(__file__).resolve().parents[2]
NUM_WORKERS = 2
GRACE_SECS = 60.0
"""How long the others may take to end after one has ended; then they are killed."""
LIMIT_SECS = 120.0


@dataclasses.dataclass
class CrashOfWorker:
  """An `on_train` that ends one worker when its batch `number`, counted from 0, is about to be used."""

  worker: int
  number: int
  seen: int = 0

  def __call__(self, ids: np.ndarray) -> None:
    if own_index() == self.worker and self.seen == self.number:
      raise Crash(f"before batch {self.number} of worker {self.worker}")
    self.seen += 1


def own_index() -> int:
  """Returns which worker this process is."""
  return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def result_path(results: str | os.PathLike[str], index: int) -> Path:
  """Returns where a worker leaves its outcome."""
  return Path(results) / f"worker-{index}.pickle"


def run(name: str, folder: str, job: Job) -> WorkersRun:
  """Runs a job in two processes of the stack `name`, each `python -m tests.faults.worker`; see Stack.run_workers."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
    temporary, description = Path(place, "tmp"), Path(place, "job.pickle")
    temporary.mkdir()
    description.write_bytes(pickle.dumps(job))
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    with LocalCluster(
      workers=NUM_WORKERS,
      program=(sys.executable, "-m", "tests.faults.worker"),
      arguments=(name, str(description), folder, place),
      log_dir=Path(place, "logs"),
      env={"PYTHONPATH": path, "TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "-1"},
      grace_secs=GRACE_SECS,
    ) as cluster:
      try:
        cluster.wait(timeout=LIMIT_SECS)
      except TimeoutError:
        cluster.kill()
      workers = [
        WorkerOutcome(process.returncode, process.log(1 << 20), _read(result_path(place, index)))
        for index, process in enumerate(cluster.processes())
      ]
    return WorkersRun(workers, sorted(entry.name for entry in temporary.iterdir() if entry.is_dir()))


def _read(path: Path) -> Outcome | None:
  return pickle.loads(path.read_bytes()) if path.exists() else None
