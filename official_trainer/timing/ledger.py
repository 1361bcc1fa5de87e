"""Where the wall time of a run went, over all its starts: model_dir/time.json.

Each start of the process, and each return to a checkpoint, begins a *leg*: from a step to a step. A leg's seconds are
counted by phase and sum to its wall time. *Goodput* is the share of all wall time that trained steps which were kept:
those of a leg that a later leg did again are lost, and so is every other phase. Time between two starts, and between a
kill and the last time the file was written (at each checkpoint, evaluation and end), is not known to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.atomic import write_text
from official_trainer.timing.phases import Phase

_FILE = "time.json"
_FORMAT_VERSION = 1


@dataclasses.dataclass
class Leg:
  """Attributes:
  start: the step at which it began, None before anything was restored.
  end: the step that it reached.
  secs: phase -> seconds.
  """

  start: int | None = None
  end: int | None = None
  secs: dict[str, float] = dataclasses.field(default_factory=lambda: {phase.value: 0.0 for phase in Phase})


class TimeLedger:
  """Counts the seconds of each phase."""

  def __init__(self, *, clock: Callable[[], float] = time.monotonic, began: float | None = None):
    """Begins to count.

    Args:
      clock: returns seconds.
      began: when the process began, by the same clock; None for now.
    """
    self._clock = clock
    self._before: list[Leg] = []
    self._legs = [Leg()]
    self._open = [Phase.OTHER]
    self._since = clock() if began is None else began

  @contextlib.contextmanager
  def phase(self, phase: Phase) -> Iterator[None]:
    """Counts the body as this phase."""
    self._settle()
    self._open.append(phase)
    try:
      yield
    finally:
      self._settle()
      self._open.pop()

  def waited(self, secs: float) -> None:
    """Moves seconds from training to waiting for data."""
    here = self._legs[-1].secs
    secs = min(secs, here[Phase.TRAIN.value])
    here[Phase.TRAIN.value] -= secs
    here[Phase.DATA_WAIT.value] += secs

  def begin_leg(self, step: int) -> None:
    """Says that the run goes on from this step: after a restore, and when it went back."""
    self._settle()
    if self._legs[-1].start is not None:
      self._legs.append(Leg())
    self._legs[-1].start = self._legs[-1].end = step

  def reached(self, step: int) -> None:
    """Says how far the run has come."""
    self._legs[-1].end = step

  def load(self, model_dir: str) -> None:
    """Takes over what earlier starts of the run wrote. Times that cannot be read are forgotten, with a warning."""
    path = os.path.join(model_dir, _FILE)
    if not tf.io.gfile.exists(path):
      return
    try:
      with tf.io.gfile.GFile(path) as file:
        legs = json.loads(file.read())["legs"]
      self._before = [_read(leg) for leg in legs]
    except (ValueError, KeyError, TypeError, AttributeError, tf.errors.OpError) as error:
      logging.warning("%s cannot be read (%s): the times of earlier starts are not counted.", path, error)

  def save(self, model_dir: str) -> None:
    """Writes the legs, those of earlier starts first, and their sums."""
    self._settle()
    content = {
      "format_version": _FORMAT_VERSION,
      "legs": [dataclasses.asdict(leg) for leg in self.legs],
      "total_secs": self._sums(),
      "goodput": self._goodput(),
    }
    write_text(os.path.join(model_dir, _FILE), json.dumps(content, indent=2) + "\n")

  @property
  def legs(self) -> list[Leg]:
    return [*self._before, *self._legs]

  def secs(self) -> dict[str, float]:
    """Returns phase -> seconds over all legs; their sum is the wall time."""
    self._settle()
    return self._sums()

  def total_secs(self) -> float:
    """Returns the wall time of all legs, in seconds."""
    return sum(self.secs().values())

  def goodput(self) -> float:
    """Returns the share of all wall time that trained steps which were kept, in [0, 1]."""
    self._settle()
    return self._goodput()

  def _sums(self) -> dict[str, float]:
    return {phase.value: sum(leg.secs[phase.value] for leg in self.legs) for phase in Phase}

  def _goodput(self) -> float:
    total = sum(self._sums().values())
    return sum(leg.secs[Phase.TRAIN.value] * share for leg, share in _kept(self.legs)) / total if total else 0.0

  def summary(self) -> str:
    """Returns one line for people."""
    secs = self.secs()
    total = sum(secs.values()) or 1.0
    shares = ", ".join(f"{name.replace('_', ' ')} {value / total:.0%}" for name, value in secs.items() if value)
    starts = f" in {len(self.legs)} legs" if len(self.legs) > 1 else ""
    return f"{_spoken(total)}{starts}: {shares}; goodput {self._goodput():.0%}"

  def _settle(self) -> None:
    now = self._clock()
    self._legs[-1].secs[self._open[-1].value] += now - self._since
    self._since = now


def _read(leg: Mapping[str, Any]) -> Leg:
  start, end = (None if leg[key] is None else int(leg[key]) for key in ("start", "end"))
  return Leg(start, end, {phase.value: float(leg["secs"].get(phase.value, 0.0)) for phase in Phase})


def _kept(legs: list[Leg]) -> Iterator[tuple[Leg, float]]:
  """Yields each leg with the share of its steps that no later leg did again."""
  first_again: float = float("inf")
  for leg in reversed(legs):
    if leg.start is None or leg.end is None or leg.end <= leg.start:
      yield leg, 0.0
      continue
    yield leg, max(0.0, min(leg.end, first_again) - leg.start) / (leg.end - leg.start)
    first_again = min(first_again, leg.start)


def _spoken(secs: float) -> str:
  minutes, rest = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes} min"
  return f"{minutes} min {rest} s" if minutes else f"{secs:.1f} s"
