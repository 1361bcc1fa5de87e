"""The folder of the best weights so far: files of weights, and a record that names those that count."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.atomic import remove_leftovers, write_text, writing
from official_trainer.checkpoint.state_file import read_state_file, write_state_file

STEP_KEY = "best_ckpt_global_step"
FILE_KEY = "best_ckpt_file"
RANKING_KEY = "best_ckpt_ranking"
_NAME = "best_ckpt"
_RECORD = "info.json"

Record = dict[str, Any]
"""The scores of an evaluation, its step under STEP_KEY, and its file of weights under FILE_KEY."""


def packed(ranked: Sequence[Record], top_k: int) -> Record:
  """Returns one record of several: the best, and all of them, best first, under RANKING_KEY where several are kept."""
  return dict(ranked[0]) if top_k == 1 else {**ranked[0], RANKING_KEY: list(ranked)}


def unpacked(record: Record | None) -> list[Record]:
  """Returns the records in a packed one, best first."""
  if not record:
    return []
  return list(record[RANKING_KEY]) if RANKING_KEY in record else [record]


class BestFolder:
  """Reads and writes one such folder. Decides nothing."""

  def __init__(self, path: str):
    """Stores the path; touches nothing."""
    self._path = path
    self._is_swept = False

  @property
  def path(self) -> str:
    return self._path

  @property
  def record(self) -> Record | None:
    """The record on disk; None if there is none or it cannot be read."""
    return read_record(self._path)

  def holds(self, file: str) -> bool:
    """Says whether the weights of this name are there."""
    return tf.io.gfile.exists(os.path.join(self._path, f"{file}.index"))

  def file_for(self, record: Record, named: Collection[Record]) -> str:
    """Returns the name of the file for the weights with these scores, at this step.

    Weights that a record names are only replaced by a repetition of them, which has the same bits: others of the same
    step get another name, so that record and weights agree at every moment.

    Args:
      record: the scores and the step.
      named: the records, on disk or in the state, whose weights must stay what they are.
    """
    file = f"{_NAME}-{record[STEP_KEY]}"
    while any(other.get(FILE_KEY) == file and not _is_repetition(record, other) for other in named):
      file += "-again"
    return file

  def write_weights(self, model: tf.Module, file: str) -> None:
    """Writes the weights that are in place now under this name."""
    prefix = os.path.join(self._path, file)
    with writing(prefix):
      tf.io.gfile.makedirs(self._path)
      # Whoever saves writes: parameter servers need not see the folder.
      options = tf.train.CheckpointOptions(experimental_io_device="/device:CPU:0")
      tf.train.Checkpoint(model=model).write(prefix, options=options)

  def write_record(self, record: Record) -> None:
    """Makes the weights that `record`, a packed one, names those that count, by rename."""
    write_text(os.path.join(self._path, _RECORD), json.dumps(record, indent=2, sort_keys=True) + "\n")
    write_state_file(
      self._path, [one[FILE_KEY] for one in reversed(unpacked(record))]
    )  # TensorFlow's latest: the best.

  def keep(self, files: Collection[str]) -> None:
    """Removes all weights but these, and what was left by a process that could not finish."""
    if not tf.io.gfile.isdir(self._path):
      return
    if not self._is_swept:
      remove_leftovers(self._path)
      self._is_swept = True
    for name in tf.io.gfile.listdir(self._path):
      stem = name.rstrip("/").rsplit(".", 1)[0]
      if stem.startswith(_NAME + "-") and stem not in files:
        path = os.path.join(self._path, name)
        (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def read_record(folder: str) -> Record | None:
  """Reads the record of a best-checkpoint folder; None if there is none or it cannot be read."""
  path = os.path.join(folder, _RECORD)
  if not tf.io.gfile.exists(path):
    return None
  try:
    with tf.io.gfile.GFile(path) as file:
      return dict(json.loads(file.read()))
  except (ValueError, TypeError, tf.errors.OpError) as error:
    logging.warning("The record %s cannot be read (%s); the next finite value becomes the best.", path, error)
    return None


def best_checkpoint_in(folder: str) -> str | None:
  """Returns the prefix of the exported weights that the record names, else the newest one, else None."""
  record = read_record(folder)
  if record and FILE_KEY in record:
    return os.path.join(folder, record[FILE_KEY])
  return read_state_file(folder)


def step_of(folder: str, file: str | None = None) -> int | None:
  """Returns the step at which weights of the folder were evaluated, from the record.

  Args:
    folder: of best weights.
    file: the name of the weights; None for the best.
  """
  record = read_record(folder)
  found = next((one for one in unpacked(record) if one.get(FILE_KEY) == file), record)
  return int(found[STEP_KEY]) if found and STEP_KEY in found else None


def _is_repetition(record: Record, other: Record) -> bool:
  scores = {key: value for key, value in other.items() if key != FILE_KEY}
  return json.dumps(scores, sort_keys=True) == json.dumps(record, sort_keys=True)  # NaN is NaN here.
