"""Asks every probe of one stack, and tells what it answered: `python -m tests.faults.asking STACK RESULTS [NUMBERS]`.

One process asks probe after probe and appends a line of JSON for each to the file RESULTS; a supervisor starts another
one behind a probe that broke it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.faults.answer import BEHAVES, FAULTY, NOT_OFFERED, Answer
from tests.faults.probe import PROBES
from tests.faults.stack import NotOffered, Stack
from tests.faults.stacks import build_stack

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECS = 600
GROUPS = ("averages", "best", "checkpoint", "config", "data", "evaluation", "processes", "reports", "workers")


def load_probes() -> None:
  """Imports every file of probes, each of which enters its own."""
  import importlib

  for group in GROUPS:
    importlib.import_module(f"tests.faults.probes_{group}")


def ask(stack: Stack, number: int, folder: Path) -> Answer:
  """Runs one probe in an empty folder."""
  try:
    PROBES[number].run(stack, folder)
  except NotOffered as missing:
    return Answer(NOT_OFFERED, str(missing))
  except AssertionError as shown:
    return Answer(FAULTY, _line(str(shown)))
  except (Exception, KeyboardInterrupt) as error:
    return Answer(FAULTY, f"{type(error).__name__}: {_line(str(error))}")
  return Answer(BEHAVES)


def ask_in_processes(name: str, numbers: Iterable[int]) -> dict[int, Answer]:
  """Asks probes in a process of their own; a probe that ends the process, or never returns, has shown its fault."""
  waiting = sorted(numbers)
  answers: dict[int, Answer] = {}
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    results = Path(folder) / "results.jsonl"
    while waiting:
      results.write_text("", "utf-8")
      ended = _process(name, results, waiting, Path(folder))
      for line in results.read_text("utf-8").splitlines():
        number, verdict, why = json.loads(line)
        answers[number] = Answer(verdict, why)
      left = [number for number in waiting if number not in answers]
      if left:
        answers[left.pop(0)] = Answer(FAULTY, ended)
      waiting = left
  return dict(sorted(answers.items()))


def _process(name: str, results: Path, numbers: list[int], folder: Path) -> str:
  """Runs `main` in a process and says how it ended."""
  arguments = [sys.executable, "-m", "tests.faults.asking", name, str(results), ",".join(map(str, numbers))]
  path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
  environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "CUDA_VISIBLE_DEVICES": "-1"}
  try:
    done = subprocess.run(
      arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_SECS, check=False
    )
  except subprocess.TimeoutExpired:
    return "the process did not return"
  last = (done.stderr.strip().splitlines() or [""])[-1]
  return f"the process ended with {done.returncode}: {_line(last)}"


def main(name: str, results: str, numbers: str) -> None:
  from tests.conftest import configure_logical_cpus

  stack = build_stack(name)
  configure_logical_cpus()
  load_probes()
  for number in map(int, numbers.split(",")):
    # Something of a run that failed may still be writing there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
      began = time.monotonic()
      answer = ask(stack, number, Path(folder))
      print(f"{name} {number}: {answer.verdict}, {time.monotonic() - began:.1f} s", file=sys.stderr)
      # Folders are drawn: what is told must not depend on their names.
      why = answer.why.replace(folder, "FOLDER")
    with open(results, "a", encoding="utf-8") as file:
      file.write(json.dumps([number, answer.verdict, why]) + "\n")


def _line(text: str) -> str:
  """Returns what a text says in one line of limited length."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if "in user code:" in lines:  # A trace of compiled code comes before what went wrong in it.
    lines = lines[-1:]
  return " ".join(lines)[:200]


if __name__ == "__main__":
  main(*sys.argv[1:])
