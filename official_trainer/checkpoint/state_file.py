"""TensorFlow's `checkpoint` file, by which `tf.train.latest_checkpoint` finds the newest checkpoint of a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from official_trainer.atomic import write_text


def write_state_file(directory: str, names: Sequence[str]) -> None:
  """Writes DIRECTORY/checkpoint, by rename.

  Args:
    directory: the folder of the checkpoints.
    names: names of the checkpoints that exist, relative to the folder, the newest last; at least one.
  """
  # A CheckpointState in protocol-buffer text form; a JSON string is a valid string literal there.
  lines = [f"model_checkpoint_path: {json.dumps(names[-1])}"]
  lines += [f"all_model_checkpoint_paths: {json.dumps(name)}" for name in names]
  write_text(os.path.join(directory, "checkpoint"), "\n".join(lines) + "\n")


def read_state_file(directory: str) -> str | None:
  """Returns the prefix of the newest checkpoint that DIRECTORY/checkpoint names.

  None if there is no such file, if it cannot be read, or if the checkpoint's files are gone.
  """
  try:
    return tf.train.latest_checkpoint(directory)
  except (ValueError, tf.errors.OpError) as error:
    logging.warning("%s/checkpoint cannot be read (%s); checkpoints are looked for by name.", directory, error)
    return None
