"""A folder that is whole or absent: written beside its place, then renamed into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.atomic import is_local, writing


@contextlib.contextmanager
def new_folder(target: str, *, last: str = "") -> Iterator[str]:
  """Gives a hidden folder to write into, and puts it in the place of `target` when the body is done.

  A folder that is there stays until then. What a killed process left behind is removed first; where the process is
  killed between taking the old folder away and putting the new one in its place, there is none.

  Remote file systems rename files, not folders: there, the file `last` comes into its place when all others have.

  Args:
    target: the folder's path.
    last: name of a file in it that says that it is whole.

  Raises:
    NotWritten: if the file system refuses. If the body raises, what it wrote is removed.
  """
  parent, name = os.path.split(target.rstrip("/"))
  # Neither begins with the other: remote file systems know beginnings of names only.
  temporary = os.path.join(parent, f".{name}.tmp-{os.getpid()}")
  former = os.path.join(parent, f".{name}.tmp-former-{os.getpid()}")
  with writing(target):
    tf.io.gfile.makedirs(parent)
    _sweep(parent, name)
    tf.io.gfile.makedirs(temporary)
  try:
    yield temporary
    with writing(target):
      if tf.io.gfile.exists(target):
        _move(target, former)
      _move(temporary, target, last=last)
      if tf.io.gfile.exists(former):
        tf.io.gfile.rmtree(former)
  except BaseException:
    with contextlib.suppress(tf.errors.OpError):  # The error being raised says more.
      tf.io.gfile.rmtree(temporary)
    raise


def _move(source: str, target: str, *, last: str = "") -> None:
  if is_local(source):
    tf.io.gfile.rename(source, target)
    return
  files = [os.path.join(parent, name) for parent, _, names in tf.io.gfile.walk(source) for name in names]
  for path in sorted(files, key=lambda path: (os.path.basename(path) == last, path)):
    moved = target + path[len(source) :]
    tf.io.gfile.makedirs(os.path.dirname(moved))
    tf.io.gfile.rename(path, moved, overwrite=True)
  tf.io.gfile.rmtree(source)


def _sweep(parent: str, name: str) -> None:
  for found in tf.io.gfile.listdir(parent):
    if found.startswith(f".{name}.tmp-"):
      tf.io.gfile.rmtree(os.path.join(parent, found.rstrip("/")))
