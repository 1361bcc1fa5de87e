"""What the console shows, apart from how it learns of it: plain lines, or nothing."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TextIO

from official_trainer.writers import formats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """The result of one inner loop or one evaluation.

  Attributes:
    step: number of completed updates.
    total_steps: the step at which the run ends, or None where that is not known.
    mode: "train" or "validation".
    metrics: metric name -> value.
    steps_per_second: the speed of this very loop, or None where it was not measured.
  """

  step: int
  total_steps: int | None
  mode: str
  metrics: Mapping[str, float]
  steps_per_second: float | None = None


class Display(abc.ABC):
  """One way to show reports. Warnings are shown by every display."""

  @abc.abstractmethod
  def show(self, report: Report) -> None:
    """Shows a result."""

  @abc.abstractmethod
  def status(self, text: str) -> None:
    """Shows what the run is busy with; an empty text is for training itself."""

  @abc.abstractmethod
  def note(self, text: str) -> None:
    """Shows a line about the run, which stays."""

  @abc.abstractmethod
  def warn(self, text: str) -> None:
    """Shows a warning, which stays."""

  @abc.abstractmethod
  def close(self) -> None:
    """Leaves the last state on the screen."""


class Silent(Display):
  """Shows warnings only: `--quiet`."""

  def __init__(self, stream: TextIO):
    self._stream = stream

  def show(self, report: Report) -> None:
    pass

  def status(self, text: str) -> None:
    pass

  def note(self, text: str) -> None:
    pass

  def close(self) -> None:
    pass

  def warn(self, text: str) -> None:
    self._stream.write(f"warning: {text}\n")
    self._stream.flush()


class Notes(Silent):
  """Shows what happens to the process, but no results: for every process but the chief."""

  def note(self, text: str) -> None:
    self._stream.write(f"{text}\n")
    self._stream.flush()


class Lines(Notes):
  """One line a report, for files, pipes and notebooks. A status is not worth a line.

  An epoch ends with its evaluations: an empty line stands between them and the training that follows.
  """

  def __init__(self, stream: TextIO):
    super().__init__(stream)
    self._ends_epoch = False

  def show(self, report: Report) -> None:
    is_training = report.mode == "train"
    if is_training and self._ends_epoch:
      self.note("")
    self._ends_epoch = not is_training
    self.note(line(report))


def line(report: Report) -> str:
  """Returns the report as one line; lines of a run are aligned with each other."""
  columns = [f"step {formats.position(report.step, report.total_steps)}"]
  columns.append(f"{report.mode:<{formats.MODE_WIDTH}}")
  columns += [f"{name} {value:<{formats.VALUE_WIDTH}}" for name, value in readable(report.metrics)]
  text = "  ".join(columns)
  if report.steps_per_second is not None:
    text += f" | {formats.speed(report.steps_per_second):>13}"
    if report.mode == "train" and report.total_steps is not None:
      left = report.total_steps - report.step
      text += f"  ETA {formats.remaining(left, report.steps_per_second)}"
  return text.rstrip()


def readable(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
  """Returns (name, value) as shown to people, losses first."""
  return [(formats.shared_name(name), formats.value(metrics[name])) for name in formats.in_order(metrics)]
