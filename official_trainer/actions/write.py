"""Shows reports to people: files, TensorBoard, the terminal. Projections of the history, never its owner."""

from __future__ import annotations

from official_trainer.actions.event import Event
from official_trainer.writers.base import Writer


class WriteReport:
  """Hands each report to the writers."""

  def __init__(self, writer: Writer):
    self._writer = writer

  def __call__(self, event: Event) -> None:
    if event.reports:
      self._writer.scalars(event.step, event.mode, event.metrics)
    self._writer.timings(event.step, event.mode, event.timings)
    for name, metrics in event.sets.items():
      self._writer.scalars(event.step, name, metrics)
    self._writer.flush()
