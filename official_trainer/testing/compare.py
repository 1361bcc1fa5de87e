"""What differs, bit for bit, between two finished runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best_folder import FILE_KEY, Record, best_checkpoint_in, read_record, unpacked
from official_trainer.checkpoint.stored import VALUE

_HISTORY = "history.jsonl"
_RECORD = "info.json"
_HOST = f"host{VALUE}"
# The first describes the Python objects that were saved, not a value of theirs; the second is TensorFlow's own count of
# saves, which only asynchronous ones write.
_NOT_OF_THE_RUN = ("_CHECKPOINTABLE_OBJECT_GRAPH", f"save_counter{VALUE}")

Path = str | os.PathLike[str]


def differences(left: Path, right: Path) -> list[str]:
  """Lists what differs between two finished runs, a line each: history, newest checkpoint, best records and weights.

  Clock times, settings, and which older checkpoints are there, are not compared.

  Args:
    left: model_dir of one run.
    right: model_dir of the other.
  """
  left, right = os.fspath(left), os.fspath(right)
  found = [*_history_differences(left, right), *_newest_differences(left, right)]
  folders = sorted({*_best_folders(left), *_best_folders(right)})
  for folder in folders:
    found += _best_differences(folder, os.path.join(left, folder), os.path.join(right, folder))
  return found


def tensor_differences(left: Path, right: Path) -> list[str]:
  """Lists the values of two checkpoints that are not equal bit for bit.

  Args:
    left: prefix of one checkpoint.
    right: prefix of the other.
  """
  name = os.path.basename(os.fspath(left))
  try:
    one, other = _tensors(os.fspath(left)), _tensors(os.fspath(right))
  except tf.errors.OpError as error:
    return [f"{name}: cannot be read: {error}"]
  found = [f"{name}: only one run has {key}" for key in sorted(one.keys() ^ other.keys())]
  for key in sorted(one.keys() & other.keys()):
    if reason := _difference(one[key], other[key]):
      found.append(f"{name}: {key.removesuffix(VALUE)}: {reason}")
  return found


def first_different_step(left: Path, right: Path) -> int | None:
  """Returns the step of the first row in which two histories differ; None if they are equal."""
  for one, other in _paired_lines(os.fspath(left), os.fspath(right)):
    if one != other:
      return min(json.loads(line)["step"] for line in (one, other) if line)
  return None


def _history_differences(left: str, right: str) -> list[str]:
  for number, (one, other) in enumerate(_paired_lines(left, right), start=1):
    if one != other:
      return [f"{_HISTORY}: from line {number} on: {one or 'nothing'} != {other or 'nothing'}"]
  return []


def _paired_lines(left: str, right: str) -> Iterator[tuple[str, str]]:
  one, other = (_text(os.path.join(folder, _HISTORY)).splitlines() for folder in (left, right))
  for index in range(max(len(one), len(other))):
    yield one[index] if index < len(one) else "", other[index] if index < len(other) else ""


def _newest_differences(left: str, right: str) -> list[str]:
  steps = [manifest.committed_steps(folder)[-1:] for folder in (left, right)]
  if steps[0] != steps[1]:
    return [f"newest checkpoint: {_step_text(steps[0])} != {_step_text(steps[1])}"]
  if not steps[0]:
    return []
  return tensor_differences(*(manifest.checkpoint_prefix(folder, steps[0][0]) for folder in (left, right)))


def _step_text(steps: list[int]) -> str:
  return f"step {steps[0]}" if steps else "none"


def _best_folders(model_dir: str) -> Iterator[str]:
  """Yields the folders of best checkpoints, relative to model_dir."""
  for folder, _, names in tf.io.gfile.walk(model_dir):
    if _RECORD in names:
      yield os.path.relpath(folder, model_dir) if "://" not in folder else folder[len(model_dir) :].strip("/")


def _best_differences(name: str, left: str, right: str) -> list[str]:
  records = [read_record(folder) for folder in (left, right)]
  if records[0] != records[1]:
    return [f"{name}: {records[0]} != {records[1]}"]
  prefixes = [_best_prefixes(folder, record) for folder, record in zip((left, right), records, strict=True)]
  if not all(prefixes):
    return [] if prefixes[0] == prefixes[1] else [f"{name}: only one run has weights"]
  return [f"{name}/{line}" for pair in zip(*prefixes, strict=True) for line in tensor_differences(*pair)]


def _best_prefixes(folder: str, record: Record | None) -> list[str]:
  """Lists the weights in a folder of best checkpoints: those that the record names, else the newest."""
  if files := [one[FILE_KEY] for one in unpacked(record) if FILE_KEY in one]:
    return [os.path.join(folder, file) for file in files]
  newest = best_checkpoint_in(folder)
  return [] if newest is None else [newest]


def _tensors(prefix: str) -> dict[str, np.ndarray]:
  reader = tf.compat.v1.train.NewCheckpointReader(prefix)
  values: dict[str, np.ndarray] = {}
  for key in reader.get_variable_to_shape_map():
    if key == _HOST:
      host = json.loads(reader.get_tensor(key))
      values |= {f"host/{name}": np.asarray(json.dumps(value), object) for name, value in host.items()}
    elif key not in _NOT_OF_THE_RUN:
      value = reader.get_tensor(key)
      values[key] = np.asarray(value, object if isinstance(value, bytes) else None)
  return values


def _difference(one: np.ndarray, other: np.ndarray) -> str | None:
  if one.dtype != other.dtype or one.shape != other.shape:
    return f"{one.dtype.name}{list(one.shape)} != {other.dtype.name}{list(other.shape)}"
  if one.dtype == object:
    return None if one.tolist() == other.tolist() else "other text"
  if one.tobytes() == other.tobytes():
    return None
  # Bits, not numbers: two NaN may be equal, and zeros of two signs different.
  width = one.dtype.itemsize
  bits = [np.frombuffer(value.tobytes(), f"V{width}") for value in (one, other)]
  text = f"{int(np.sum(bits[0] != bits[1]))} of {one.size} numbers"
  if np.issubdtype(one.dtype, np.floating):
    text += f", by up to {float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))):.3g}"
  return text


def _text(path: str) -> str:
  if not tf.io.gfile.exists(path):
    return ""
  with tf.io.gfile.GFile(path) as file:
    content: Any = file.read()
  return str(content)
