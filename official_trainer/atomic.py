"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.errors import NotWritten

_TEMPORARY = re.compile(r"\..+\.tmp-\d+$")
# TensorFlow puts the system's own words behind the file's name, sometimes with the op after them.
_SYSTEM_WORDS = re.compile(r"; ([^;\[\n]+?)\s*(?:\[|\n|$)")


def write_text(path: str | os.PathLike[str], text: str) -> None:
  """Writes `text` as UTF-8, whole or not at all: see `write_bytes`."""
  write_bytes(path, text.encode("utf-8"))


def write_compressed_text(path: str | os.PathLike[str], text: str) -> None:
  """Writes `text` as UTF-8, compressed by gzip, whole or not at all: see `write_bytes`."""
  write_bytes(path, gzip.compress(text.encode("utf-8"), mtime=0))  # Without a time: equal texts are equal files.


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes `content` so that `path` holds its old content or all of the new, even if killed.

  The bytes go to a hidden temporary file in the same folder (made if missing), which is then
  renamed over `path`. Works on every file system of `tf.io.gfile`; where that is a remote store,
  renaming is as atomic as the store makes it.

  Raises:
    NotWritten: if the file system refuses; the temporary file is then removed and `path` left as it
      was.
  """
  path = os.fspath(path)
  name = path.rpartition("/")[2]
  folder = path[: len(path) - len(name)]  # With its slash: `os.path` would break "ram://name".
  temporary = f"{folder}.{name}.tmp-{os.getpid()}"
  with writing(path):
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


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
  """Turns an error of the file system in the body into one that names `path`.

  TensorFlow's own may be an OutOfRangeError (a file too large), which elsewhere means the end of the data.

  Raises:
    NotWritten: from the file system's error.
  """
  try:
    yield
  except NotWritten:
    raise
  except (tf.errors.OpError, OSError) as error:
    raise NotWritten(path, _reason(error)) from error


def remove_leftovers(folder: str) -> None:
  """Removes the temporary files that killed processes left in a folder. Call where no other process writes there."""
  if not tf.io.gfile.isdir(folder):
    return
  for name in tf.io.gfile.listdir(folder):
    if _TEMPORARY.match(name):
      _remove(os.path.join(folder, name))


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


def _reason(error: tf.errors.OpError | OSError) -> str:
  if isinstance(error, OSError):
    return error.strerror or str(error)
  found = _SYSTEM_WORDS.findall(error.message)
  return found[-1] if found else error.message.partition("\n")[0]
