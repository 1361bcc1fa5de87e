"""TensorBoard event files whose curves do not fold back after a restart."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from official_trainer import atomic
from official_trainer.writers.base import Rows, Writer, numbers, pixels

_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class TensorBoardWriter(Writer):
  """Writes one folder of event files for each mode, made when the mode first writes.

  A restarted run writes to a new file in the same folder. It begins with a marker that tells
  readers to drop the points of the attempt that was rolled back: later than the restored step, and
  also at that step where the restored history has no row of the mode there (an evaluation that is
  about to be repeated). A writer opened at step 0 without a history drops from the first step it
  writes. Only folders that this process writes to are touched, so evaluating beside a training run
  leaves the training curves alone.

  Values are stored as float32 `simple_value`s, the older of the two scalar formats. TensorBoard
  shows both alike, but `EventAccumulator` drops points at a marker in this format only.

  TensorBoard's fast loader ignores markers and instead drops a name's points when its step goes
  back. The outcome is the same, since a resumed run reports at the same steps.

  Args:
    model_dir: the run's folder, on any file system of `tf.io.gfile`.
    subdirs: mode -> folder within `model_dir`. Texts go to the first one.
    clock: returns the wall time that points carry, in seconds since 1970.
  """

  def __init__(
    self,
    model_dir: str | os.PathLike[str],
    subdirs: Mapping[str, str] | None = None,
    *,
    clock: Callable[[], float] = time.time,
  ):
    subdirs = subdirs or {"train": "train", "validation": "validation"}
    self._folders = {mode: os.path.join(os.fspath(model_dir), subdir) for mode, subdir in subdirs.items()}
    self._clock = clock
    self._files: dict[str, _EventFile] = {}
    self._stale_from: dict[str, int | None] | None = None  # None while not open.

  def open(self, step: int, rows: Rows) -> None:
    self.close()
    known = {mode for row_step, mode, _ in rows if row_step == step}
    nothing_known = step == 0 and not rows
    self._stale_from = {mode: None if nothing_known else step + 1 if mode in known else step for mode in self._folders}

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    if values:
      points = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in numbers(values).items()]
      self._add(step, mode, summary_pb2.Summary(value=points))

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self.scalars(step, mode, values)

  def text(self, step: int, tag: str, markdown: str) -> None:
    self._add(step, next(iter(self._folders)), text_pb(tag, markdown))

  def images(self, step: int, mode: str, name: str, pictures: Any) -> None:
    values = []
    for place, picture in enumerate(pixels(name, pictures)):
      height, width, channels = picture.shape
      image = summary_pb2.Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=tf.io.encode_png(picture).numpy()
      )
      values.append(summary_pb2.Summary.Value(tag=f"{name}/{place}", image=image))
    self._add(step, mode, summary_pb2.Summary(value=values))

  def hparams(self, values: Mapping[str, Any]) -> None:
    known = {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in values.items()}
    self._add(0, next(iter(self._folders)), hparams_pb(known, start_time_secs=self._clock()))

  def flush(self) -> None:
    for file in self._files.values():
      file.flush()

  def close(self) -> None:
    self._stale_from = None
    files, self._files = self._files, {}
    with contextlib.ExitStack() as stack:
      for file in files.values():
        stack.callback(file.close)

  def _add(self, step: int, mode: str, summary: summary_pb2.Summary) -> None:
    if self._stale_from is None:
      raise RuntimeError("TensorBoardWriter is not open. Call `open(step, rows)` before anything is written.")
    if mode not in self._folders:
      raise ValueError(
        f"mode must be one of {', '.join(self._folders)}, got {mode!r}. Name a folder for it in `subdirs`."
      )
    if mode not in self._files:
      stale_from = self._stale_from[mode]
      self._files[mode] = _EventFile(
        self._folders[mode], self._clock, stale_from=step if stale_from is None else stale_from
      )
    self._files[mode].add(step=step, summary=summary)


class _EventFile:
  """A new event file that readers take for the newest of its folder.

  Readers go through a folder in the order of the names and never back, so a marker in a file that
  sorts early drops nothing. TensorBoard's `EventFileWriter` names files by clock, process and a
  counter: of two restarts within a second, or on a host whose clock is behind, the newer may sort
  first. Hence a file of our own in TensorBoard's record format, with a time stamp that always
  grows.

  Args:
    folder: where to make the file.
    clock: returns the wall time in seconds since 1970.
    stale_from: the step from which on points in earlier files are to be dropped.
  """

  def __init__(self, folder: str, clock: Callable[[], float], *, stale_from: int):
    newest = _newest_stamp(folder)
    stamp = int(clock()) if newest is None else max(int(clock()), newest + 1)
    self._path = os.path.join(folder, f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}")
    with atomic.writing(self._path):
      tf.io.gfile.makedirs(folder)
    self._records = RecordWriter(tf.io.gfile.GFile(self._path, "wb"))
    self._clock = clock
    self.add(file_version="brain.Event:2")
    if newest is not None:
      # Twice: TensorBoard takes the first marker of a folder for the start of the run, which drops
      # nothing, and earlier files may have none.
      for _ in range(2):
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self.add(step=stale_from, session_log=start)

  def add(self, **fields) -> None:
    """Appends an `Event` with these fields and the present wall time."""
    event = event_pb2.Event(wall_time=self._clock(), **fields)
    with atomic.writing(self._path):
      self._records.write(event.SerializeToString())

  def flush(self) -> None:
    with atomic.writing(self._path):
      self._records.flush()

  def close(self) -> None:
    with atomic.writing(self._path):
      self._records.close()


def _newest_stamp(folder: str) -> int | None:
  """Returns the largest time stamp among the folder's event files, or None if it has none."""
  if not tf.io.gfile.isdir(folder):
    return None
  found = [_EVENT_FILE.match(name) for name in tf.io.gfile.listdir(folder)]
  return max((int(match.group(1)) for match in found if match), default=None)
