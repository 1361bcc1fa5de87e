"""What the person who started the run sees while it runs."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from official_trainer.writers import display
from official_trainer.writers.base import Rows, Writer, numbers


class Console(Writer):
  """Shows progress: a bar on a terminal, elsewhere a plain line for each loop and evaluation.

  It measures nothing: the speed is the `steps_per_second` given to `timings`, from which the time
  left follows. Results of a step are shown once their timings are there too, or at the latest at
  the next call of another kind (`flush`, `status`, another step or mode).

  Args:
    stream: where to write; standard error by default, so that standard output stays free for
      results.
    quiet: show warnings only.
    is_chief: whether this process is the one that reports; the others show notes and warnings only.
    terminal: whether `stream` understands cursor movement; asked of the stream by default.
    live: whether the bar redraws by itself; without it only `stop` draws (for tests).
    width: columns of the terminal; asked of it by default.
  """

  def __init__(
    self,
    stream: TextIO | None = None,
    *,
    quiet: bool = False,
    is_chief: bool = True,
    terminal: bool | None = None,
    live: bool = True,
    width: int | None = None,
  ):
    self._stream = sys.stderr if stream is None else stream
    self._terminal = _is_terminal(self._stream) if terminal is None else terminal
    self._live = live
    self._width = width
    self._has_bar = not quiet and is_chief
    self._plain = (display.Silent if quiet else display.Lines if is_chief else display.Notes)(self._stream)
    self._display: display.Display = self._plain
    self._total_steps: int | None = None
    self._pending: display.Report | None = None
    self._timed: tuple[int, str, float] | None = None
    self._last: dict[str, Mapping[str, float]] = {}

  def open(self, step: int, rows: Rows) -> None:
    """Takes the last results from the history, so that a resumed run shows them from the start."""
    self._last = {mode: metrics for row_step, mode, metrics in rows if row_step <= step}

  def start(self, step: int, total_steps: int) -> None:
    """Begins to show progress from `step` towards `total_steps`."""
    self.stop()
    self._total_steps = total_steps
    if self._terminal and self._has_bar:
      self._display = self._open_bar(step, total_steps)

  def stop(self) -> None:
    """Ends the bar, leaving its last state on the screen. Later results are shown as lines."""
    self._show_pending()
    self._display.close()
    self._display = self._plain

  def status(self, text: str) -> None:
    """Says what the run is busy with, such as "compiling"; an empty text is for training itself."""
    self._show_pending()
    self._display.status(text)

  def note(self, text: str) -> None:
    """Shows a line about the run, such as where it resumed."""
    self._show_pending()
    self._display.note(text)

  def warn(self, text: str) -> None:
    """Shows a warning, in every process and also when quiet."""
    self._show_pending()
    self._display.warn(text)

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    self._show_pending()
    self._last[mode] = numbers(values)
    self._pending = display.Report(step=step, total_steps=self._total_steps, mode=mode, metrics=self._last[mode])
    self._show_timed()

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    if "steps_per_second" in values:
      self._timed = (step, mode, numbers(values)["steps_per_second"])
      self._show_timed()

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Does nothing: texts are for readers of TensorBoard."""

  def flush(self) -> None:
    self._show_pending()

  def close(self) -> None:
    self.stop()

  def _show_timed(self) -> None:
    """Shows the pending report if the speed that belongs to it has come."""
    if self._pending is None or self._timed is None:
      return
    step, mode, speed = self._timed
    if (self._pending.step, self._pending.mode) == (step, mode):
      self._pending = dataclasses.replace(self._pending, steps_per_second=speed)
      self._show_pending()

  def _show_pending(self) -> None:
    report, self._pending = self._pending, None
    if report is not None:
      self._display.show(report)

  def _open_bar(self, step: int, total_steps: int) -> display.Display:
    # Imported here: rich takes a tenth of a second that a quiet or piped run need not spend.
    import rich.console

    from official_trainer.writers import bar

    terminal = rich.console.Console(file=self._stream, force_terminal=True, width=self._width)
    return bar.Bar(terminal, step=step, total_steps=total_steps, last=self._last, live=self._live)


def _is_terminal(stream: TextIO) -> bool:
  return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
