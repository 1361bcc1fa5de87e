"""What the loop tells its actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.history import TRAIN as TRAIN
from official_trainer.history import VALIDATION as VALIDATION


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """An inner loop or an evaluation has ended.

  Attributes:
    step: number of completed updates.
    start: the number before the inner loop; `step` itself after an evaluation.
    mode: "train" or "validation".
    output: what the trainer returned, untouched.
    metrics: the scalars among it as Python floats, nested names joined by "/"; those of named evaluation sets are in
      `sets` instead.
    sets: name of an evaluation set -> its metrics, for the sets that a report on this step is not there of yet.
    loop_loss: the mean training loss of this inner loop alone, None without any.
    timings: what depends on the clock, such as `steps_per_second`.
    reports: whether a report ends here; training loops that end early for a checkpoint do not report.
    saves: whether a checkpoint is due here.
  """

  step: int
  start: int = 0
  mode: str
  output: Mapping[str, Any]
  metrics: Mapping[str, float]
  sets: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
  loop_loss: float | None = None
  timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
  reports: bool = True
  saves: bool = False


class LoopDiscarded(Exception):
  """Raised by an action after an inner loop: the state is an earlier one again; no later action must see the loop."""


Action = Callable[[Event], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actions:
  """The actions of each moment, in the order in which they run; `on_finish` when a run is done before its last step."""

  after_loop: Sequence[Action] = ()
  after_eval: Sequence[Action] = ()
  on_finish: Sequence[Callable[[], None]] = ()
  on_stop: Sequence[Callable[[], None]] = ()
  at_end: Sequence[Callable[[], None]] = ()
  on_error: Sequence[Callable[[], None]] = ()


def scalars_of(output: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
  """Returns the scalars of possibly nested logs as Python floats, names joined by "/"; leaves other values out."""
  found: dict[str, float] = {}
  for key, value in output.items():
    name = f"{prefix}{key}"
    if isinstance(value, Mapping):
      found.update(scalars_of(value, f"{name}/"))
      continue
    try:
      found[name] = float(value)
    except (TypeError, ValueError):
      continue
  return found
