"""A disk that is full, for all writes or for those to one kind of file; and a process that dies while it writes."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import resource
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver

from official_trainer.testing.fault import Fault, kill, patched

_TEMPORARY = re.compile(r"\.(.+)\.tmp-\d+$")
# The limit is one for the process: of two writes at a time, only the one that is meant may meet it.
_LIMIT = threading.RLock()


@contextlib.contextmanager
def full_disk(
  files: str | None = None, *, after: int = 0, times: int | None = None, free_bytes: int = 0
) -> Iterator[Fault]:
  """Makes writes to local files fail for real: the operating system refuses them, in Python and in C++ alike.

  It does so by the limit for the size of files, so the reason is "File too large" where a full disk says "No space left
  on device"; TensorFlow raises OutOfRangeError for the one and ResourceExhaustedError for the other.

  Args:
    files: only writes, of at least a byte, to files whose name matches this pattern, such as "history.jsonl" or
      "ckpt-4.*", fail. Seen are what goes through `tf.io.gfile`, under its final name where it is written under a
      temporary one, and checkpoints, whose data and index are one write, "ckpt-4.data". None: every write of this
      process fails, its logs included if they go to a file.
    after: how many of these writes go well first.
    times: how many fail; None: all until the context is left.
    free_bytes: how much of each failing write still fits.

  Raises:
    FaultDidNotHappen: at the end of a body that raised nothing, if no matching file was written.
  """
  if files is None:
    with _limited(free_bytes):
      yield Fault("full_disk()", times)
    return
  with _failing_writes(Fault(f"full_disk({files!r}, after={after})", times), files, after, free_bytes) as fault:
    yield fault


@contextlib.contextmanager
def kill_at_write(files: str, *, after: int = 0, free_bytes: int = 0) -> Iterator[Fault]:
  """Kills this process with SIGKILL in the middle of a write. For child processes of a test.

  Args:
    files: the file's name must match this pattern; see `full_disk`.
    after: how many of these writes go well first.
    free_bytes: how much of the write gets to the file.
  """
  fault = Fault(f"kill_at_write({files!r}, after={after})", 1)
  with _failing_writes(fault, files, after, free_bytes, then=kill):
    yield fault


@contextlib.contextmanager
def _failing_writes(
  fault: Fault, files: str, after: int, free_bytes: int, then: Callable[[], None] = lambda: None
) -> Iterator[Fault]:
  left = after

  def is_hit(name: str) -> bool:
    nonlocal left
    if not fault.is_due or not fnmatch.fnmatchcase(name, files):
      return False
    left -= 1
    return left < 0

  with _writes_seen(fault, is_hit, free_bytes, then):
    try:
      yield fault
    finally:
      fault.end()
  fault.require_happened(f"Not more than {after} writes to such a file came, or the file is not a local one.")


@contextlib.contextmanager
def _writes_seen(
  fault: Fault, is_hit: Callable[[str], bool], free_bytes: int, then: Callable[[], None]
) -> Iterator[None]:
  """Limits the writes that are hit, and only them, while the body runs."""
  failed: weakref.WeakSet[Any] = weakref.WeakSet()

  def attempt(write: Callable[[], Any], free: int) -> Any:
    with _limited(free):
      try:
        return write()
      except (tf.errors.OpError, OSError):
        fault.note()
        then()
        raise

  def write(original: Callable[..., None]) -> Callable[..., None]:
    def limited_write(file: Any, content: Any) -> None:
      path = os.fspath(file.name)
      with _LIMIT:
        if not content or not is_hit(_final_name(path)):
          original(file, content)
          return
        failed.add(file)

        def write_through() -> None:
          original(file, content)
          file.flush()  # Else it would only be put into a buffer.

        original(file, content[:0])  # Opens the file, and empties it unless it is appended to.
        attempt(write_through, free_bytes + (os.path.getsize(path) if os.path.exists(path) else 0))

    return limited_write

  def flush(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def flush_alone(file: Any) -> None:
      with _LIMIT:
        original(file)

    return flush_alone

  def close(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def limited_close(file: Any) -> None:
      # Closing writes what is still in the buffer.
      with _limited(free_bytes) if file in failed else _LIMIT:
        failed.discard(file)
        original(file)

    return limited_close

  def save(original: Callable[..., Any]) -> Callable[..., Any]:
    def limited_save(saver: Any, file_prefix: Any, options: Any = None) -> Any:
      name = os.path.basename(tf.get_static_value(tf.convert_to_tensor(file_prefix)).decode())
      with _LIMIT:
        if not is_hit(f"{name}.data"):
          return original(saver, file_prefix, options)
        return attempt(lambda: original(saver, file_prefix, options), free_bytes)

    return limited_save

  with (
    patched(tf.io.gfile.GFile, "write", write),
    patched(tf.io.gfile.GFile, "flush", flush),
    patched(tf.io.gfile.GFile, "close", close),
    patched(MultiDeviceSaver, "save", save),
  ):
    yield


@contextlib.contextmanager
def _limited(num_bytes: int) -> Iterator[None]:
  """Lets no file of this process be written beyond its first `num_bytes` bytes."""
  with _LIMIT:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if signal.getsignal(signal.SIGXFSZ) != signal.SIG_IGN:
      raise RuntimeError(
        "full_disk() needs the signal SIGXFSZ to be ignored, as Python does from its start; it would end the process."
      )
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
      yield
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _final_name(path: str) -> str:
  name = os.path.basename(path)
  match = _TEMPORARY.match(name)
  return match.group(1) if match else name
