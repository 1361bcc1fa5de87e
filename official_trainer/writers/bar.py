"""The progress bar of a terminal. Imports rich, so import this module only where a bar is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Table
from rich.text import Text

from official_trainer.writers import display, formats

# Drawing takes the interpreter from the training loop, and a person needs no more.
_REFRESHES_PER_SECOND = 4

_NUMBERS_WIDTH = 52
"""Columns that position, speed, time left and a status take beside the bar."""


class Bar(display.Display):
  """A bar with step, speed and time left, and below it the last results of training and validation.

  Updates are cheap: they set fields, and a timer of rich's draws. What other code prints meanwhile
  appears above the bar.

  Args:
    terminal: where to draw.
    step: the step at which this run starts, 0 or the restored one.
    total_steps: the step at which it ends.
    last: mode -> metrics already known, from the restored history.
    live: whether the timer runs; without it only `close` draws.
  """

  def __init__(
    self,
    terminal: Console,
    *,
    step: int,
    total_steps: int,
    last: Mapping[str, Mapping[str, float]],
    live: bool = True,
  ):
    self._progress = _ProgressWithResults(
      last,
      BarColumn(
        # What is left beside the numbers, which matter more, on a narrow terminal.
        bar_width=max(8, min(40, terminal.width - _NUMBERS_WIDTH)),
        style="bright_black",
        complete_style="cyan",
        finished_style="cyan",
      ),
      _Position(),
      _Speed(),
      _Left(),
      _Status(),
      console=terminal,
      auto_refresh=live,
      refresh_per_second=_REFRESHES_PER_SECOND,
    )
    self._task = self._progress.add_task("", total=total_steps, completed=step, steps_per_second=None, status="")
    self._progress.start()

  def show(self, report: display.Report) -> None:
    self._progress.last[report.mode] = report.metrics
    if report.mode != "train":
      return
    self._progress.update(self._task, completed=report.step)
    if report.steps_per_second is not None:
      self._progress.update(self._task, steps_per_second=report.steps_per_second)

  def status(self, text: str) -> None:
    self._progress.update(self._task, status=text)

  def note(self, text: str) -> None:
    self._progress.console.print(Text(text, "dim"), soft_wrap=True)

  def warn(self, text: str) -> None:
    message = Text.assemble(("warning: ", "yellow"), text)
    self._progress.console.print(message, soft_wrap=True)

  def close(self) -> None:
    self.status("")
    self._progress.stop()


class _ProgressWithResults(Progress):
  """Rich's progress with a table of the last results under it."""

  def __init__(self, last: Mapping[str, Mapping[str, float]], *columns: ProgressColumn, **options):
    self.last = dict(last)
    super().__init__(*columns, **options)

  def get_renderables(self) -> Iterable[RenderableType]:
    yield Group(self.make_tasks_table(self.tasks), self._results())

  def _results(self) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for mode, metrics in list(self.last.items()):
      cells = [
        # A name and its value stay on one line; the blanks between pairs are where a line may
        # break.
        Text.assemble((f"{name}\N{NO-BREAK SPACE}", "dim"), f"{value:<{width}}")
        for name, value in display.readable(metrics)
        for width in [formats.VALUE_WIDTH]
      ]
      table.add_row(mode, Text("  ").join(cells))
    return table


class _Position(ProgressColumn):
  def render(self, task: Task) -> Text:
    return Text(formats.position(int(task.completed), int(task.total or 0)))


class _Speed(ProgressColumn):
  def render(self, task: Task) -> Text:
    speed = task.fields["steps_per_second"]
    return Text("" if speed is None else formats.speed(speed), style="dim")


class _Left(ProgressColumn):
  def render(self, task: Task) -> Text:
    left = formats.remaining(int(task.remaining or 0), task.fields["steps_per_second"])
    return Text(f"ETA {left}", style="dim")


class _Status(ProgressColumn):
  def render(self, task: Task) -> Text:
    return Text(task.fields["status"], style="cyan")
