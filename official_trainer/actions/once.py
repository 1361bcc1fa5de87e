"""What is done once in a process, after its first inner loop."""

from __future__ import annotations

from collections.abc import Callable

from official_trainer.actions.event import TRAIN, Event


class AfterFirstLoop:
  """Calls a function after the first inner loop that is kept: the model is compiled, and its variables are all made."""

  def __init__(self, call: Callable[[], None]):
    """Stores the function."""
    self._call = call
    self._is_done = False

  def __call__(self, event: Event) -> None:
    if event.mode == TRAIN and not self._is_done:
      self._is_done = True
      self._call()
