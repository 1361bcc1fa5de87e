"""Where a process writes: the chief the run's folder, the others what nobody will read."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.distribute.peers import Peers

_IN_MEMORY = "ram://official_trainer-without-model_dir-"
_numbers = itertools.count()


def is_kept(folder: str) -> bool:
  """Says whether a folder that `written_folder` gave is one for others to read: not that of a run without model_dir."""
  return not folder.startswith(_IN_MEMORY)


@contextlib.contextmanager
def written_folder(model_dir: str, peers: Peers) -> Iterator[str]:
  """Gives the folder that this process writes; all of them read `model_dir`.

  Every process must take part in a save, since the values of some variables are reduced over replicas for it, and so
  everyone writes. What others than the chief write goes to a temporary folder of this machine, which is removed at the
  end; one that a kill left behind is removed by the next start.

  A run without a folder writes its few records (seed, config, times) to the memory of the process, and no disk.

  Args:
    model_dir: the run's folder; "" for none.
    peers: the processes of the run.
  """
  if not model_dir:
    folder = f"{_IN_MEMORY}{next(_numbers)}"
    tf.io.gfile.makedirs(folder)  # Without it, what is written there could not be removed as a folder.
    try:
      yield folder
    finally:
      tf.io.gfile.rmtree(folder)
    return
  if peers.is_chief:
    yield model_dir
    return
  run = hashlib.sha256(os.path.abspath(model_dir).encode()).hexdigest()[:16]
  scratch = os.path.join(tempfile.gettempdir(), f"official_trainer-{getpass.getuser()}-{run}-{peers.index}")
  shutil.rmtree(scratch, ignore_errors=True)
  os.makedirs(scratch, mode=0o700)
  try:
    yield scratch
  finally:
    shutil.rmtree(scratch, ignore_errors=True)
