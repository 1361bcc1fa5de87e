"""A sink that a process can do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from official_trainer.errors import NotWritten
from official_trainer.writers.base import Rows, Writer


class Dispensable(Writer):
  """Hands every call to another writer until its file cannot be written; then warns, once, and writes no more.

  For curves beside a result that reaches its reader another way, such as those of an evaluation in somebody else's
  folder, which one may not write to.
  """

  def __init__(self, writer: Writer, *, warn: Callable[..., None] = logging.warning):
    self._writer: Writer | None = writer
    self._warn = warn

  def open(self, step: int, rows: Rows) -> None:
    self._attempt(lambda writer: writer.open(step, rows))

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._attempt(lambda writer: writer.scalars(step, mode, values))

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._attempt(lambda writer: writer.timings(step, mode, values))

  def text(self, step: int, tag: str, markdown: str) -> None:
    self._attempt(lambda writer: writer.text(step, tag, markdown))

  def images(self, step: int, mode: str, name: str, pictures: Any) -> None:
    self._attempt(lambda writer: writer.images(step, mode, name, pictures))

  def hparams(self, values: Mapping[str, Any]) -> None:
    self._attempt(lambda writer: writer.hparams(values))

  def flush(self) -> None:
    self._attempt(lambda writer: writer.flush())

  def close(self) -> None:
    self._attempt(lambda writer: writer.close())

  def _attempt(self, call: Callable[[Writer], None]) -> None:
    if self._writer is None:
      return
    try:
      call(self._writer)
    except NotWritten as error:
      self._writer = None
      self._warn("%s The result is complete without it.", error)
