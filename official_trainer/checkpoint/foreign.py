"""Checkpoints without a manifest: those of other programs, and what an interrupted save of ours left."""

from __future__ import annotations

import os
import re

import tensorflow as tf

from official_trainer.checkpoint.state_file import read_state_file
from official_trainer.checkpoint.stored import VALUE, stored_shapes

_INDEX = re.compile(r"(?:.*-)?(\d+)\.index$")
# A root that every training checkpoint of ours has, and no other program's.
_OUR_ROOT = f"host{VALUE}"


def is_foreign(prefix: str) -> bool:
  """Says whether another program wrote a whole checkpoint at `prefix`. Asked only where there is no manifest."""
  if not tf.io.gfile.exists(f"{prefix}.index"):
    return False
  try:
    return _OUR_ROOT not in stored_shapes(prefix)
  except tf.errors.OpError:
    return False


def newest_foreign(directory: str) -> str | None:
  """Returns the prefix of the newest checkpoint of another program, or None.

  That is the one which the folder's `checkpoint` file names; if the file is lost or names nothing, the one with the
  highest number at the end of its name.
  """
  if not tf.io.gfile.isdir(directory):
    return None
  named = read_state_file(directory)
  if named is not None and is_foreign(named):
    return named
  matches = [match for match in map(_INDEX.match, tf.io.gfile.listdir(directory)) if match]
  for match in sorted(matches, key=lambda match: int(match.group(1)), reverse=True):
    prefix = os.path.join(directory, match.string.removesuffix(".index"))
    if is_foreign(prefix):
      return prefix
  return None
