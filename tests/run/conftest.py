"""What the tests of whole runs share."""

import pytest


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  """Leaves out the picture at the end of a run, which takes longer than all the rest."""
  from official_trainer.run import session

  monkeypatch.setattr(session, "plot_history", lambda *args: None)
