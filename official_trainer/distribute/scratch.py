"""Where a process writes: the chief the run's folder, the others what nobody will read."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from official_trainer.distribute.peers import Peers


@contextlib.contextmanager
def written_folder(model_dir: str, peers: Peers) -> Iterator[str]:
  """Gives the folder that this process writes; all of them read `model_dir`.

  Every process must take part in a save, since the values of some variables are reduced over replicas for it, and so
  everyone writes. What others than the chief write goes to a temporary folder of this machine, which is removed at the
  end; one that a kill left behind is removed by the next start.

  Args:
    model_dir: the run's folder.
    peers: the processes of the run.
  """
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
