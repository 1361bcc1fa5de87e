"""The folder of the best weights so far: files of weights, and a record that names those that count."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.atomic import remove_leftovers, write_text, writing
from official_trainer.checkpoint.state_file import read_state_file, write_state_file

STEP_KEY = "best_ckpt_global_step"
FILE_KEY = "best_ckpt_file"
_NAME = "best_ckpt"
_RECORD = "info.json"

Record = dict[str, Any]
"""The scores of an evaluation, its step under STEP_KEY, and its file of weights under FILE_KEY."""


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

  def file_for(self, record: Record) -> str:
    """Returns the name of the file for the weights with these scores, at this step.

    Weights that the record on disk names are only replaced by a repetition of them, which has the same bits: others of
    the same step get another name, so that record and weights agree at every moment.
    """
    file, found = f"{_NAME}-{record[STEP_KEY]}", self.record
    if found is None or found.get(FILE_KEY) != file:
      return file
    scores = {key: value for key, value in found.items() if key != FILE_KEY}
    is_repeated = json.dumps(scores, sort_keys=True) == json.dumps(record, sort_keys=True)  # NaN is NaN here.
    return file if is_repeated else f"{file}-again"

  def write_weights(self, model: tf.Module, file: str) -> None:
    """Writes the weights that are in place now under this name."""
    prefix = os.path.join(self._path, file)
    with writing(prefix):
      tf.io.gfile.makedirs(self._path)
      # Whoever saves writes: parameter servers need not see the folder.
      options = tf.train.CheckpointOptions(experimental_io_device="/device:CPU:0")
      tf.train.Checkpoint(model=model).write(prefix, options=options)

  def write_record(self, record: Record) -> None:
    """Makes the weights that `record` names those that count, by rename."""
    write_text(os.path.join(self._path, _RECORD), json.dumps(record, indent=2, sort_keys=True) + "\n")
    write_state_file(self._path, [record[FILE_KEY]])

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


def step_of(folder: str) -> int | None:
  """Returns the step at which the best weights were evaluated, from the record."""
  record = read_record(folder)
  return int(record[STEP_KEY]) if record and STEP_KEY in record else None
