"""Finding the checkpoint that a path means, and what it holds."""

from __future__ import annotations

import os

import tensorflow as tf

from official_trainer.checkpoint import best_folder, manifest
from official_trainer.checkpoint.foreign import newest_foreign
from official_trainer.checkpoint.stored import VALUE, stored_shapes

_STEP_VARIABLE = f"global_step{VALUE}"


def find_checkpoint(path: str) -> str | None:
  """Returns the prefix of the checkpoint at `path`, or None.

  Args:
    path: a prefix such as `runs/a/ckpt-100`, a model_dir (the newest one is meant), or the folder of a best checkpoint.
  """
  # The prefix first: a remote file system may take any beginning of a name for a folder.
  if tf.io.gfile.exists(f"{path}.index"):
    return path
  if not tf.io.gfile.isdir(path):
    return None
  if steps := manifest.committed_steps(path):
    return manifest.checkpoint_prefix(path, steps[-1])
  return best_folder.best_checkpoint_in(path) or newest_foreign(path)


def is_model_only(prefix: str) -> bool:
  """Says whether a checkpoint holds weights without a step, as best checkpoints do."""
  return _STEP_VARIABLE not in stored_shapes(prefix)


def recorded_step(prefix: str) -> int:
  """Returns the step at which a model-only checkpoint was made; 0 if no record says so."""
  return best_folder.step_of(os.path.dirname(prefix), os.path.basename(prefix)) or 0
