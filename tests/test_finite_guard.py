"""The suite's own look at every checkpoint bites."""

import math

import pytest

from official_trainer.actions.event import Actions
from official_trainer.run import session as session_module
from tests import tiny


def test_a_checkpoint_with_a_value_that_is_not_finite_fails_the_test_that_wrote_it(tmp_path, monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)
  built = tiny.build(tmp_path, mode="train")

  def spoil(event):
    built.state.model.trainable_variables[1].assign([math.nan, 0.0])
    built.session.store.save(event.step + 100)
    built.session.store.wait()

  built.session.loop._actions = Actions(after_loop=(spoil,))
  with pytest.raises(AssertionError, match="ckpt-102 holds a value that is not finite: model/"):
    built.run()
