"""What probes read from a run's folder, and how they compare."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.faults.stack import checkpoint_steps


def check(condition: object, message: str) -> None:
  """Raises AssertionError with the message unless the condition holds."""
  if not condition:
    raise AssertionError(message)


def same_bits(ones: Iterable[np.ndarray], others: Iterable[np.ndarray]) -> bool:
  """Says whether two lists of arrays are equal to the bit."""
  return [np.asarray(a).tobytes() for a in ones] == [np.asarray(b).tobytes() for b in others]


def all_finite(arrays: Iterable[np.ndarray]) -> bool:
  return all(np.isfinite(array).all() for array in arrays)


def read_checkpoint(prefix: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Returns name -> value of the numbers in a checkpoint."""
  reader = tf.train.load_checkpoint(os.fspath(prefix))
  kinds = reader.get_variable_to_dtype_map()
  return {name: reader.get_tensor(name) for name, kind in sorted(kinds.items()) if kind != tf.string}


def model_weights(prefix: str | os.PathLike[str]) -> list[np.ndarray]:
  """Returns the "linear" model's kernel and bias in a checkpoint."""
  values = read_checkpoint(prefix)
  names = [name for name in values if name.startswith("model/") and "OPTIMIZER" not in name.upper()]
  kernels = [values[name] for name in names if "/kernel/" in name]
  biases = [values[name] for name in names if "/bias/" in name]
  check(len(kernels) == len(biases) == 1, f"{prefix} holds other weights than the model's: {names}")
  return [*kernels, *biases]


def latest(folder: Path) -> Path:
  """Returns the prefix of the newest checkpoint."""
  steps = checkpoint_steps(folder)
  check(steps, f"there is no checkpoint in {sorted(os.listdir(folder))}")
  return folder / f"ckpt-{steps[-1]}"


def best_prefix(folder: Path) -> Path:
  """Returns the prefix of the best weights' checkpoint."""
  found = tf.train.latest_checkpoint(str(folder / "best_ckpt"))
  check(found, "no best weights can be found on disk")
  return Path(found)


def best_record(folder: Path) -> dict[str, float]:
  """Returns what is recorded of the best evaluation; {} without a record."""
  path = folder / "best_ckpt" / "info.json"
  return json.loads(path.read_text("utf-8")) if path.exists() else {}


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
  """Returns (step, value) of a curve as TensorBoard shows it: points before a purge marker are hidden."""
  accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
  accumulator.Reload()
  tags = accumulator.Tags()
  if tag in tags["tensors"]:
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]
  check(tag in tags["scalars"], f"{folder} has no curve {tag!r}, only {tags['tensors'] + tags['scalars']}")
  return [(event.step, float(event.value)) for event in accumulator.Scalars(tag)]


def ids_by_step(batches: Sequence[Sequence[int]], num_replicas: int) -> list[list[int]]:
  """Joins what each replica saw to the sorted ids of each step's global batch."""
  groups = [batches[i : i + num_replicas] for i in range(0, len(batches), num_replicas)]
  return [sorted(i for batch in group for i in batch) for group in groups]
