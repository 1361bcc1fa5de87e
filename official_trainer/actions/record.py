"""Puts what was reported into the TrainState, so that the checkpoint of a step holds the rows of that step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.state import TrainState


class RecordHistory:
  """Appends a row when a report ends, one for each set of an evaluation; in the middle it keeps the accumulators."""

  def __init__(self, state: TrainState, window: Callable[[], dict[str, Any]]):
    """Stores the state, and the function that reads the training metrics' accumulators as JSON values."""
    self._state = state
    self._window = window

  def __call__(self, event: Event) -> None:
    host = self._state.host
    if event.mode == TRAIN:
      host.window = None if event.reports else self._window()
    if event.reports:
      host.history.append(event.step, event.mode, event.metrics)
    for name, metrics in event.sets.items():
      host.history.append(event.step, name, metrics)
    if event.mode == VALIDATION:
      host.last_eval_step = event.step
