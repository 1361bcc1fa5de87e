"""When the best weights are exported, and what is said of it."""

import contextlib

import pytest

from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.actions.export_best import ExportBest
from official_trainer.timing.phases import Phase


class Run:
  """A run that remembers what its action did."""

  def __init__(self, best=None, held=None, error=None):
    self.best, self.held, self.error = best, held, error
    self.exported, self.notes, self.warnings, self.entered = [], [], [], []
    self.action = ExportBest(
      self.export,
      "runs/a/best_export",
      lambda: self.best,
      lambda: self.held,
      note=self.notes.append,
      warn=self.warnings.append,
      phases=self.phase,
    )

  def export(self, folder):
    if self.error:
      raise self.error
    self.exported.append(folder)
    return "averages"

  @contextlib.contextmanager
  def phase(self, phase):
    self.entered.append(phase)
    yield


def event(step, mode=VALIDATION):
  return Event(step=step, mode=mode, output={}, metrics={})


def test_the_weights_of_an_evaluation_that_is_the_best_are_exported():
  run = Run(best=4)
  run.action(event(4))
  assert run.exported == ["runs/a/best_export"]
  assert run.notes == ["exported the best weights (step 4, averages) to runs/a/best_export"]
  assert (run.warnings, run.entered) == ([], [Phase.SAVE])


@pytest.mark.parametrize(("best", "what"), [(None, event(4)), (2, event(4)), (4, event(4, TRAIN))])
def test_other_weights_are_not(best, what):
  run = Run(best=best)
  run.action(what)
  assert (run.exported, run.notes, run.warnings) == ([], [], [])


def test_an_error_of_the_export_is_a_warning():
  run = Run(best=4, error=RuntimeError("no room"))
  run.action(event(4))
  assert run.warnings == ["the best weights (step 4) were not exported: RuntimeError: no room"]


def test_an_interrupt_is_none():
  with pytest.raises(KeyboardInterrupt):
    Run(best=4, error=KeyboardInterrupt()).action(event(4))


@pytest.mark.parametrize(
  ("best", "held", "says"),
  [(None, None, None), (4, 4, None), (4, None, "is not there"), (4, 6, "holds the weights of step 6")],
)
def test_the_end_says_so_if_the_folder_does_not_hold_the_best(best, held, says):
  run = Run(best=best, held=held)
  run.action.finish()
  assert len(run.warnings) == (says is not None)
  if says:
    assert run.warnings[0].startswith(f"runs/a/best_export {says}; the best weights are those of step 4. Export them")
