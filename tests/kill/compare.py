"""What must be equal, bit for bit, between a run that was killed and one that was not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf


def differences(left: Path, right: Path, step: int) -> list[str]:
  """Lists what differs between two finished runs: history, final checkpoint, best records and weights.

  Args:
    left: model_dir of one run.
    right: model_dir of the other.
    step: the final step of both.
  """
  found = []
  if (left / "history.jsonl").read_bytes() != (right / "history.jsonl").read_bytes():
    found.append("history.jsonl")
  found += tensor_differences(left / f"ckpt-{step}", right / f"ckpt-{step}")
  records = [json.loads((folder / "best_ckpt" / "info.json").read_text("utf-8")) for folder in (left, right)]
  if records[0] != records[1]:
    found.append(f"best record: {records[0]} != {records[1]}")
  else:
    name = records[0]["best_ckpt_file"]
    found += tensor_differences(left / "best_ckpt" / name, right / "best_ckpt" / name)
  return found


def tensor_differences(left: Path, right: Path) -> list[str]:
  """Lists the tensors of two checkpoints that are not equal bit for bit."""
  readers = [tf.train.load_checkpoint(str(prefix)) for prefix in (left, right)]
  names = [set(reader.get_variable_to_shape_map()) for reader in readers]
  found = [f"{left.name}: only in one run: {name}" for name in sorted(names[0] ^ names[1])]
  for name in sorted(names[0] & names[1]):
    values = [np.asarray(reader.get_tensor(name)) for reader in readers]
    if values[0].dtype != values[1].dtype or values[0].tobytes() != values[1].tobytes():
      if values[0].dtype == object and values[0].tolist() == values[1].tolist():
        continue
      found.append(f"{left.name}: {name}")
  return found
