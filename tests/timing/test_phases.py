import contextlib

import pytest

from official_trainer.timing.phases import Phase, Phases


def test_every_listener_is_inside_for_the_length_of_the_phase_and_the_status_is_shown():
  seen = []

  @contextlib.contextmanager
  def listener(phase):
    seen.append(("in", phase))
    try:
      yield
    finally:
      seen.append(("out", phase))

  phases = Phases(listener, status=seen.append)
  with pytest.raises(KeyError), phases(Phase.OTHER), phases(Phase.EVAL):
    raise KeyError
  assert seen == [("in", Phase.OTHER), ("in", Phase.EVAL), "evaluating", ("out", Phase.EVAL), ("out", Phase.OTHER)]
