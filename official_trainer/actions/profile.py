"""Records some inner loops with TensorFlow's profiler: those of the config, and those asked for during the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from official_trainer.actions.event import Event

Window = tuple[int, int]
"""(first, end): from the moment when `first` updates are completed to that when `end` are."""


class Profile:
  """Has inner loops end where a window begins and ends, and records what is between.

  All processes that train together call it alike, so that their loops have the same lengths; one of them records.
  """

  def __init__(
    self,
    folder: str,
    *,
    window: Window | None = None,
    request: Callable[[], int] = lambda: 0,
    records: bool = True,
    note: Callable[[str], None],
    warn: Callable[[str], None],
  ):
    """Stores its arguments.

    Args:
      folder: where recordings go.
      window: what the config asks for, or None.
      request: returns how many steps somebody has asked for since the last call; the same in all processes.
      records: whether this process is the one that records.
      note: shows a line.
      warn: shows a warning.
    """
    self._folder = folder
    self._windows: list[Window] = [] if window is None else [window]
    self._request = request
    self._records = records
    self._note = note
    self._warn = warn
    self._began: int | None = None
    self._not_before = 0

  def stops(self, step: int) -> Collection[int]:
    """Returns where inner loops must end, given where the next one begins. Takes up a request."""
    if num_steps := self._request():
      self._windows.append((step, step + num_steps))
    return [border for window in self._windows for border in window]

  @contextlib.contextmanager
  def recorded(self, step: int) -> Iterator[None]:
    """Is entered for the length of an inner loop that begins at `step`; names it where it is recorded."""
    if self._records and self._began is None and self._is_inside(step) and step >= self._not_before:
      self._begin(step)
    if self._began is None:
      yield
      return
    with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
      yield

  def __call__(self, event: Event) -> None:
    """Ends a recording whose window is over, before other actions are recorded."""
    if not self._is_inside(event.step):
      self.end()

  def end(self) -> None:
    """Ends a recording, wherever it is."""
    began, self._began = self._began, None
    if began is None:
      return
    with self._failure_told("kept", began):
      tf.profiler.experimental.stop()
      self._note(f"the profile from step {began} on is in {self._folder}; see it with TensorBoard")

  def _begin(self, step: int) -> None:
    with self._failure_told("begun", step):
      tf.profiler.experimental.start(self._folder)
      self._began = step

  def _is_inside(self, step: int) -> bool:
    return any(first <= step < end for first, end in self._windows)

  @contextlib.contextmanager
  def _failure_told(self, what: str, step: int) -> Iterator[None]:
    """Turns an error into a warning, one for each window. The windows stay: the other processes stop for them, too."""
    try:
      yield
    except Exception as error:  # noqa: BLE001  # The run is worth more than any recording of it.
      self._not_before = max((end for first, end in self._windows if first <= step < end), default=0)
      self._warn(f"a profile could not be {what}: {error}")
