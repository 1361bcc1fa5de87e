"""Exports the weights each time they have become the best."""

from __future__ import annotations

from collections.abc import Callable

from official_trainer.actions.event import VALIDATION, Event
from official_trainer.timing.phases import Enter, Phase, Phases


class ExportBest:
  """After an evaluation whose weights are the best so far: exports them. A training is never ended by an export."""

  def __init__(
    self,
    export: Callable[[str], str],
    folder: str,
    best_step: Callable[[], int | None],
    exported_step: Callable[[], int | None],
    *,
    note: Callable[[str], None],
    warn: Callable[[str], None],
    phases: Enter | None = None,
  ):
    """Stores its arguments.

    Args:
      export: exports the present weights into a folder, and says which they are ("averages" or "raw").
      folder: where.
      best_step: returns the step of the best weights so far, None before there are any.
      exported_step: returns the step of the weights in the folder, None if there are none.
      note: shows a line.
      warn: shows a warning.
      phases: entered while the run waits for the export.
    """
    self._export = export
    self._folder = folder
    self._best_step = best_step
    self._exported_step = exported_step
    self._note = note
    self._warn = warn
    self._phases = phases or Phases()

  def __call__(self, event: Event) -> None:
    if event.mode != VALIDATION or self._best_step() != event.step:
      return
    try:
      with self._phases(Phase.SAVE):
        weights = self._export(self._folder)
    except Exception as error:  # noqa: BLE001  # The run's result are its weights, which are saved.
      self._warn(f"the best weights (step {event.step}) were not exported: {type(error).__name__}: {error}")
    else:
      self._note(f"exported the best weights (step {event.step}, {weights}) to {self._folder}")

  def finish(self) -> None:
    """Says so if the folder does not hold the best weights: an export failed, or the run went back behind one."""
    best, found = self._best_step(), self._exported_step()
    if best is not None and found != best:
      held = "is not there" if found is None else f"holds the weights of step {found}"
      self._warn(
        f"{self._folder} {held}; the best weights are those of step {best}. Export them with --mode=export"
        " --params_override=trainer.export.source=best."
      )
