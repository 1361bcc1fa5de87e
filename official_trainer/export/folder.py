"""A folder that is whole or absent: written beside its place, then renamed into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.atomic import writing


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
  """Gives a hidden folder to write into, and puts it in the place of `target` when the body is done.

  A folder that is there stays until then. What a killed process left behind is removed first; where the process is
  killed between taking the old folder away and putting the new one in its place, there is none.

  Args:
    target: the folder's path.

  Raises:
    NotWritten: if the file system refuses. If the body raises, what it wrote is removed.
  """
  parent, name = os.path.split(target.rstrip("/"))
  temporary = os.path.join(parent, f".{name}.tmp-{os.getpid()}")
  with writing(target):
    tf.io.gfile.makedirs(parent)
    _sweep(parent, name)
    tf.io.gfile.makedirs(temporary)
  try:
    yield temporary
    with writing(target):
      if tf.io.gfile.exists(target):
        former = f"{temporary}-former"
        tf.io.gfile.rename(target, former)
        tf.io.gfile.rename(temporary, target)
        tf.io.gfile.rmtree(former)
      else:
        tf.io.gfile.rename(temporary, target)
  except BaseException:
    with contextlib.suppress(tf.errors.OpError):  # The error being raised says more.
      tf.io.gfile.rmtree(temporary)
    raise


def _sweep(parent: str, name: str) -> None:
  for found in tf.io.gfile.listdir(parent):
    if found.startswith(f".{name}.tmp-"):
      tf.io.gfile.rmtree(os.path.join(parent, found.rstrip("/")))
