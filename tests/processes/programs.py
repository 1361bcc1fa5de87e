"""Small programs in place of the trainer: they say who they are, and end or wait as they are told."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LIMIT_SECS = 30


def python(code: str) -> list[str]:
  """Returns the command of a program that knows its task (`job`, `index`), and can wait for ever (`rest()`)."""
  head = (
    "import json, os, signal, subprocess, sys, time\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "job, index = config['task']['type'], config['task']['index']\n"
    "def rest():\n"
    "  print('resting', flush=True)\n"
    "  while True: time.sleep(60)\n"
  )
  return [sys.executable, "-c", head + code]


def is_alive(pid: int) -> bool:
  """Whether a process runs: one that has ended and is not yet waited for does not."""
  try:
    state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
  except (FileNotFoundError, ProcessLookupError):
    return False
  return state not in "ZX"


def wait_until(is_true: Callable[[], bool], limit_secs: float = LIMIT_SECS) -> None:
  """Waits for what other processes do; raises if it never comes."""
  began = time.monotonic()
  while not is_true():
    if time.monotonic() - began > limit_secs:
      raise TimeoutError(f"did not come true in {limit_secs:g} s")
    time.sleep(0.01)


def wait_until_gone(pids: Sequence[int]) -> None:
  """Waits until none of the processes runs."""
  wait_until(lambda: not any(map(is_alive, pids)))


def numbers_in(path: os.PathLike) -> list[int]:
  """Returns the numbers of a file, one a line; none where it is not there yet."""
  file = Path(path)
  return [int(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
