"""Runs a command again and again, killing it at drawn moments, and compares what two runs left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

POLL_SECS = 0.02
_UNCOMMITTED = re.compile(r"ckpt-(\d+)(_temp|\.index|\.data-.*)$")
LIMIT_SECS = 300


class Kill(NamedTuple):
  """What a kill has left.

  Attributes:
    step: of the newest row of the history, -1 before the first one.
    cut_off: whether files of a save are there without a manifest: it was in the middle of one.
    text: for people.
  """

  step: int
  cut_off: bool
  text: str


def command(model_dir: Path, experiment: str, overrides: str) -> list[str]:
  """Returns the command line that trains `experiment` into `model_dir`."""
  return [
    sys.executable,
    "-m",
    "official_trainer.train",
    f"--experiment={experiment}",
    "--mode=train_and_eval",
    f"--model_dir={model_dir}",
    f"--params_override={overrides}",
    "--quiet",
  ]


def run_to_end(arguments: list[str]) -> None:
  """Runs the command; raises with its output if it fails."""
  done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_SECS, check=False)
  if done.returncode:
    raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def kill_repeatedly(
  arguments: list[str],
  model_dir: Path,
  *,
  seed: int,
  kills: int,
  train_steps: int,
  after_each: Callable[[], None] = lambda: None,
) -> list[Kill]:
  """Starts the command `kills` times and kills it each time, at moments drawn from the seed. Says where it was.

  The first kill may come before the first step, in the middle of the imports, the compilation or the first save; the
  others are spread over what is left of the run.

  Args:
    arguments: the command.
    model_dir: its folder.
    seed: of the moments.
    kills: how often.
    train_steps: where the run ends.
    after_each: looks at what a kill has left.
  """
  draw = random.Random(seed)
  places = []
  for number in range(kills):
    reached = max(0, last_step(model_dir))
    share = (train_steps - reached) // (kills - number)
    step = draw.randint(reached, reached + share) if number else None
    delay_secs = draw.uniform(0.0, 0.3) if number else draw.uniform(0.5, 12.0)
    places.append(_kill_once(arguments, model_dir, step, delay_secs))
    print(f"seed {seed}, kill {number + 1}: {places[-1].text}", flush=True)
    after_each()
  return places


def stop_by_signal(
  arguments: list[str], model_dir: Path, number: signal.Signals, *, step: int, delay_secs: float
) -> int:
  """Starts the command, sends a signal `delay_secs` after its history reaches `step`, and returns its exit code."""
  process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  _wait_for(process, model_dir, step)
  time.sleep(delay_secs)
  process.send_signal(number)
  _, errors = process.communicate(timeout=LIMIT_SECS)
  print(f"{number.name} {delay_secs:.2f} s after step {step}: {errors.decode().splitlines()[-1:]}")
  return process.returncode


def _kill_once(arguments: list[str], model_dir: Path, step: int | None, delay_secs: float) -> Kill:
  """Starts the command and kills it `delay_secs` after its history reaches `step`, or after its start if None."""
  process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  if step is not None:
    _wait_for(process, model_dir, step)
  try:
    process.wait(timeout=delay_secs)
  except subprocess.TimeoutExpired:
    process.send_signal(signal.SIGKILL)
  _, errors = process.communicate()
  if process.returncode not in (0, -signal.SIGKILL):
    raise RuntimeError(f"{arguments} ended with {process.returncode} by itself:\n{errors.decode()}")
  files = sorted(name for name in os.listdir(model_dir) if name.startswith("ckpt-")) if model_dir.exists() else []
  ending = "had ended" if process.returncode == 0 else "was killed"
  place = "the start" if step is None else f"step {step}"
  reached = last_step(model_dir)
  cut_off = any(
    (match := _UNCOMMITTED.match(name)) and f"ckpt-{match.group(1)}.manifest.json" not in files for name in files
  )
  text = f"{ending} {delay_secs:.2f} s after {place}; history at {reached}; files {files}"
  return Kill(reached, cut_off, text)


def _wait_for(process: subprocess.Popen, model_dir: Path, step: int) -> None:
  """Waits until the history of a running process reaches `step`, or the process ends."""
  began = time.monotonic()
  while process.poll() is None and last_step(model_dir) < step:
    if time.monotonic() - began > LIMIT_SECS:
      process.kill()
      raise RuntimeError(f"{process.args} did not reach step {step} in {LIMIT_SECS} s")
    time.sleep(POLL_SECS)


def last_step(model_dir: Path) -> int:
  """Returns the step of the newest whole line of history.jsonl; -1 if there is none."""
  path = model_dir / "history.jsonl"
  if not path.exists():
    return -1
  lines = [line for line in path.read_text("utf-8").splitlines() if line.endswith("}}")]
  return json.loads(lines[-1])["step"] if lines else -1
