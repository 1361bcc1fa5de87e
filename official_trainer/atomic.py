"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import os

import tensorflow as tf


def write_text(path: str | os.PathLike[str], text: str) -> None:
  """Writes `text` as UTF-8, whole or not at all: see `write_bytes`."""
  write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes `content` so that `path` holds its old content or all of the new, even if killed.

  The bytes go to a hidden temporary file in the same folder (made if missing), which is then
  renamed over `path`. Works on every file system of `tf.io.gfile`; where that is a remote store,
  renaming is as atomic as the store makes it.

  Raises:
    Exception: whatever the file system raises; the temporary file is then removed and `path` left
      as it was.
  """
  path = os.fspath(path)
  name = path.rpartition("/")[2]
  folder = path[: len(path) - len(name)]  # With its slash: `os.path` would break "ram://name".
  temporary = f"{folder}.{name}.tmp-{os.getpid()}"
  if folder and not folder.endswith("://"):
    tf.io.gfile.makedirs(folder)
  try:
    with tf.io.gfile.GFile(temporary, "wb") as file:
      file.write(content)
      file.flush()
    _sync(temporary)  # Before the rename: a name that points at unwritten blocks is worse than none.
    tf.io.gfile.rename(temporary, path, overwrite=True)
  except BaseException:
    _remove(temporary)
    raise
  _sync(folder or ".")  # The rename itself is durable once the folder is.


def is_local(path: str) -> bool:
  """Returns whether `path` is an ordinary file of this machine rather than `scheme://...`."""
  return "://" not in path


def _sync(path: str) -> None:
  """Asks the kernel to put a local file or folder on the disk."""
  if not is_local(path):
    return
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError:
    if not os.path.isdir(path):  # Some file systems refuse it for folders.
      raise
  finally:
    os.close(descriptor)


def _remove(path: str) -> None:
  try:
    tf.io.gfile.remove(path)
  except tf.errors.OpError:
    pass  # It was never made, or its disk is gone: the error being raised says more.
