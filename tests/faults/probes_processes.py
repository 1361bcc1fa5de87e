"""Faults that only a process of its own can show: signals, and what an import costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.probe import probe
from tests.faults.stack import Job, Stack, checkpoint_steps, crash_before_batch
from tests.faults.values import check, model_weights, same_bits

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECS = 120
HEAVY = ("tensorflow_text", "sentencepiece", "cv2", "matplotlib", "pandas", "scipy", "sklearn", "pycocotools",
         "tensorflow_datasets", "tensorflow_hub", "tensorflow_model_optimization", "kaggle")  # fmt: skip
"""What a training of two parameters has no use for."""


def in_process(stack: Stack, folder: Path, moment: str) -> subprocess.CompletedProcess[str]:
  """Runs `tests.faults.child`: a job of six steps that sends itself a signal at a moment."""
  return subprocess.run(
    [sys.executable, "-m", "tests.faults.child", stack.name, moment, str(folder)],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    capture_output=True,
    text=True,
    timeout=LIMIT_SECS,
    check=False,
  )


def require_saved(folder: Path, done: subprocess.CompletedProcess[str], reached: int) -> None:
  """Checks that the checkpoint of a stopped run is at or after the step that it had reached."""
  saved = checkpoint_steps(folder)
  check(saved and saved[-1] >= reached,
        f"stopped after step {reached} with exit code {done.returncode}, the checkpoints are of {saved}")  # fmt: skip
  check("went on" not in done.stdout, "the code after the training ran as if it had been finished")


@probe(12)
def sigterm_loses_everything_since_the_last_interval(stack: Stack, folder: Path) -> None:
  done = in_process(stack, folder, "sigterm-in-training")
  require_saved(folder, done, 3)
  check(done.returncode not in (0, -signal.SIGTERM), f"the exit code after SIGTERM is {done.returncode}")


@probe(43)
def a_signal_during_an_evaluation_is_missed(stack: Stack, folder: Path) -> None:
  done = in_process(stack, folder, "sigterm-in-evaluation")
  require_saved(folder, done, 4)
  check(checkpoint_steps(folder)[-1] == 4, f"the run trained on to step {checkpoint_steps(folder)[-1]} of 6")
  raw = in_process(stack, folder / "raw", "four-steps")
  check(raw.returncode == 0, raw.stderr[-500:])
  saved, alone = (model_weights(place / "ckpt-4") for place in (folder, folder / "raw"))
  check(same_bits(saved, alone), "what was saved are not the raw weights")


@probe(62)
def ctrl_c_saves_nothing_or_passes_for_success(stack: Stack, folder: Path) -> None:
  done = in_process(stack, folder, "ctrl-c-in-training")
  require_saved(folder, done, 3)
  check(done.returncode == 130, f"the exit code after Ctrl-C is {done.returncode}")


@probe(40)
def what_a_run_does_not_use_is_imported(stack: Stack, folder: Path) -> None:
  done = in_process(stack, folder, "imports")
  check(done.returncode == 0, done.stderr[-500:])
  loaded = set(json.loads(done.stdout.splitlines()[-1]))
  check(not loaded & set(HEAVY), f"a training of two parameters loads {', '.join(sorted(loaded & set(HEAVY)))}")


@probe(34)
def the_patience_starts_again_after_a_restart(stack: Stack, folder: Path) -> None:
  stack.require_setting("trainer.early_stop", "early stopping")
  rule = {"metric": "score", "patience": 3, "comparison": "lower"}
  config = {"trainer.train_steps": 20, **{f"trainer.early_stop.{key}": value for key, value in rule.items()}}
  job = Job(config=config, score=lambda step: 1.0 if step == 2 else 2.0)
  stack.attempt(folder, job.but(on_train=crash_before_batch(7)))  # After the evaluations of steps 2, 4 and 6.
  done = stack.run(folder, job)
  check(done.step == 8, f"after scores of 1, 2, 2 and 2 a run with a patience of 3 ended at step {done.step}, not 8")
