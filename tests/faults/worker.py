"""One of several processes that train a job together: `python -m tests.faults.worker STACK JOB FOLDER RESULTS`."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path

from tests.faults.stack import Outcome
from tests.faults.stacks import build_stack
from tests.faults.workers import own_index, result_path


def main(name: str, description: str, folder: str, results: str) -> None:
  job = pickle.loads(Path(description).read_bytes())
  stack, outcome = build_stack(name), Outcome()

  def run() -> None:
    try:
      stack.execute(folder, job, outcome)
    finally:
      left = dataclasses.replace(outcome, trainer=None)
      result_path(results, own_index()).write_bytes(pickle.dumps(left))

  stack.as_command(run)


if __name__ == "__main__":
  main(*sys.argv[1:])
