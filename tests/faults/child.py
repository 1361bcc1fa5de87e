"""The process that a probe starts: `python -m tests.faults.child STACK MOMENT FOLDER`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

from tests.faults.stack import EMA, Job, Outcome
from tests.faults.stacks import build_stack

NEVER = {"trainer.checkpoint_interval": 100}


def main(name: str, moment: str, folder: str) -> None:
  if moment == "imports":
    for module in ("tensorflow", "tf_keras"):  # What these load is not the trainer's doing.
      importlib.import_module(module)
    before = set(sys.modules)
    build_stack(name)
    print(json.dumps(sorted(module for module in set(sys.modules) - before if "." not in module)))
    return
  stack = build_stack(name)
  outcome = Outcome()

  def sends(number: signal.Signals, count: int):
    seen = [0]

    def send(ids) -> None:
      del ids
      seen[0] += 1
      if seen[0] == count:
        os.kill(os.getpid(), number)

    return send

  if moment == "sigterm-in-training":
    job = Job(mode="train", config=NEVER, on_train=sends(signal.SIGTERM, 4))
  elif moment == "ctrl-c-in-training":
    job = Job(mode="train", config=NEVER, on_train=sends(signal.SIGINT, 4))
  elif moment == "sigterm-in-evaluation":
    config = {**NEVER, "trainer.validation_interval": 4, f"{EMA}.average_decay": 0.9}
    job = Job(config=config, on_eval=sends(signal.SIGTERM, 2))
  elif moment == "four-steps":
    job = Job(mode="train", config={"trainer.train_steps": 4, f"{EMA}.average_decay": 0.9})
  else:
    raise ValueError(f"no moment {moment!r}")
  stack.as_command(lambda: stack.execute(folder, job, outcome))
  print("went on")


if __name__ == "__main__":
  main(*sys.argv[1:])
