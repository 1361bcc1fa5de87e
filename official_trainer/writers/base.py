"""The interface of every sink, and the group that fans out to several."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Rows = Sequence[tuple[int, str, Mapping[str, float]]]
"""A history: (step, mode, metrics) in the order in which they were reported."""


class Writer(abc.ABC):
  """A place where reports go. Called on the chief only, from one thread.

  Order of calls: `open`; then `hparams`, `scalars`, `timings`, `text`, `images` and `flush` in any
  order; then `close`. `open` is called again when a run has gone back. `close` may be called more
  than once, and also on a writer that was never opened.

  `mode` is "train" or "validation". `step` is the number of completed updates. Values are anything
  that `number` accepts: Python, NumPy or eager TensorFlow scalars, including NaN and infinity.
  Names may hold slashes.
  """

  @abc.abstractmethod
  def open(self, step: int, rows: Rows) -> None:
    """Makes the sink show what an uninterrupted run would have written by `step`.

    Args:
      step: the restored step, 0 for a fresh run. Whatever the sink holds beyond the history up to
        here comes from an attempt that was rolled back, and is dropped.
      rows: the whole history up to `step`.
    """

  @abc.abstractmethod
  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    """Writes results that are a function of the config and the step, the same in every attempt."""

  @abc.abstractmethod
  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    """Writes what depends on the clock, such as `steps_per_second`."""

  @abc.abstractmethod
  def text(self, step: int, tag: str, markdown: str) -> None:
    """Writes a text, such as the config."""

  def images(self, step: int, mode: str, name: str, pictures: Any) -> None:
    """Writes pictures, uint8 [n, height, width, 1, 3 or 4]. A sink that shows none leaves them out."""
    del step, mode, name, pictures

  def hparams(self, values: Mapping[str, Any]) -> None:
    """Writes the settings of the run by dotted key, as plain values. A sink that has no place for them leaves them out.

    A later call adds to what is known, or replaces it.
    """
    del values

  @abc.abstractmethod
  def flush(self) -> None:
    """Makes everything written so far visible to readers."""

  @abc.abstractmethod
  def close(self) -> None:
    """Writes what is pending and releases the sink."""


class WriterGroup(Writer):
  """Hands every call to each of its writers, in order. An empty group writes nothing.

  A writer that raises does not keep the call from the writers after it: the error is raised once
  all were called, and when several fail, each is in the chain of the last one's `__context__`.
  """

  def __init__(self, writers: Sequence[Writer] = ()):
    self._writers = tuple(writers)

  def open(self, step: int, rows: Rows) -> None:
    self._each(lambda writer: writer.open(step, rows))

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._each(lambda writer: writer.scalars(step, mode, values))

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._each(lambda writer: writer.timings(step, mode, values))

  def text(self, step: int, tag: str, markdown: str) -> None:
    self._each(lambda writer: writer.text(step, tag, markdown))

  def images(self, step: int, mode: str, name: str, pictures: Any) -> None:
    self._each(lambda writer: writer.images(step, mode, name, pictures))

  def hparams(self, values: Mapping[str, Any]) -> None:
    self._each(lambda writer: writer.hparams(values))

  def flush(self) -> None:
    self._each(lambda writer: writer.flush())

  def close(self) -> None:
    self._each(lambda writer: writer.close())

  def _each(self, call: Callable[[Writer], None]) -> None:
    def call_from(index: int) -> None:
      if index < len(self._writers):
        try:
          call(self._writers[index])
        finally:  # Nested, so that Python chains the errors; also after Ctrl-C.
          call_from(index + 1)

    call_from(0)


def number(name: str, value: Any) -> float:
  """Returns `value` as a Python float: equal values are written alike, whatever their type.

  Raises:
    ValueError: if the value is not a single number. `name` is the metric's, for the text.
  """
  shape = getattr(value, "shape", ())
  # Text converts to float as well, and so does an array of one element: as a metric both are
  # mistakes.
  if len(shape) == 0 and not isinstance(value, (str, bytes)):
    try:
      return float(value)
    except (TypeError, ValueError):
      pass
  found = f"a {type(value).__name__} of shape {tuple(shape)}" if len(shape) else repr(value)
  raise ValueError(f"metric {name!r} must be one number, got {found}. Reduce it to a scalar before it is reported.")


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
  """Returns `values` with each value turned by `number`, in the same order."""
  return {name: number(name, value) for name, value in values.items()}


def pixels(name: str, pictures: Any) -> np.ndarray:
  """Returns pictures as uint8 [n, height, width, channels].

  Raises:
    ValueError: if they are something else. `name` is theirs, for the text.
  """
  array = np.asarray(pictures)
  if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
    raise ValueError(
      f"pictures {name!r} must be uint8 [n, height, width, 1, 3 or 4], got {array.dtype} {list(array.shape)}."
    )
  return array
