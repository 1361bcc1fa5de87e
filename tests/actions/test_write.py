from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.actions.write import WriteReport
from official_trainer.writers.base import Writer


class Notes(Writer):
  """Remembers its calls."""

  def __init__(self):
    self.calls = []

  def open(self, step, rows):
    self.calls.append(("open", step))

  def scalars(self, step, mode, values):
    self.calls.append(("scalars", step, mode, dict(values)))

  def timings(self, step, mode, values):
    self.calls.append(("timings", step, mode, dict(values)))

  def text(self, step, tag, markdown):
    self.calls.append(("text", step))

  def flush(self):
    self.calls.append(("flush",))

  def close(self):
    self.calls.append(("close",))


def test_t66_d63_results_come_before_timings_and_are_flushed():
  notes = Notes()
  event = Event(step=2, mode=VALIDATION, output={"x": 1}, metrics={"loss": 0.5}, timings={"evaluation_secs": 1.0})
  WriteReport(notes)(event)
  assert notes.calls == [
    ("scalars", 2, "validation", {"loss": 0.5}),
    ("timings", 2, "validation", {"evaluation_secs": 1.0}),
    ("flush",),
  ]


def test_a_loop_inside_a_report_writes_no_results():
  notes = Notes()
  WriteReport(notes)(Event(step=3, mode=TRAIN, output={}, metrics={"loss": 0.5}, reports=False))
  assert [call[0] for call in notes.calls] == ["timings", "flush"]
