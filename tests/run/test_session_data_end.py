"""Training data that end before the run does."""

import contextlib
import json

import pytest
import tensorflow as tf

from official_trainer.optim.config import (
  AdamWExperimentalConfig,
  ConstantLrConfig,
  EmaConfig,
  LrConfig,
  OptimizationConfig,
  OptimizerConfig,
)
from official_trainer.testing import faults
from tests import tiny


@pytest.mark.parametrize(
  ("while_loop", "steps_per_loop", "checkpoint_interval", "saved", "reported"),
  [
    (True, 2, 2, [0, 2, 4, 5], [2, 4, 5]),
    (True, 100, 100, [0, 5], [5]),
    (False, 100, 100, [0, 5], [5]),
    # The data end exactly where a loop does,
    (True, 5, 100, [0, 5], [5]),
    (False, 5, 100, [0, 5], [5]),
    # and where a checkpoint is, inside a report.
    (True, 2, 5, [0, 5], [2, 4, 5]),
  ],
)
def test_data_that_end_stop_the_run_at_the_last_real_step_saved_and_evaluated(
  tmp_path, caplog, while_loop, steps_per_loop, checkpoint_interval, saved, reported
):
  built = tiny.build(
    tmp_path,
    task_class=tiny.FiniteTask,
    train_steps=20,
    steps_per_loop=steps_per_loop,
    checkpoint_interval=checkpoint_interval,
    validation_interval=100,
    train_tf_while_loop=while_loop,
  )
  result = built.run()
  assert result.step == 5 == int(built.trainer.optimizer.iterations)
  assert built.session.loop.input_ended
  assert "data ended at step 5; 20 steps were asked for" in caplog.text + built.said
  assert tiny.committed(tmp_path) == saved
  assert tiny.steps_of(tmp_path, "train") == reported
  assert tiny.steps_of(tmp_path, "validation") == [5]
  losses = [json.loads(line)["metrics"] for line in (tmp_path / "history.jsonl").open()]
  assert all(0 < row.get("training_loss", 1) < 10 for row in losses)


@pytest.mark.parametrize("while_loop", [True, False])
def test_data_that_end_leave_the_bits_of_a_run_that_asked_for_no_more(tmp_path, while_loop):
  """Decay of the weights, averages and counters need no inputs: they must not run without them."""
  adamw = OptimizationConfig(
    optimizer=OptimizerConfig(type="adamw_experimental", adamw_experimental=AdamWExperimentalConfig(weight_decay=0.5)),
    learning_rate=LrConfig(type="constant", constant=ConstantLrConfig(learning_rate=0.1)),
    ema=EmaConfig(average_decay=0.5),
  )
  settings = {
    "task_class": tiny.FiniteTask,
    "task": {"dropout": 0.5, "batchnorm": True},
    "optimizer_config": adamw,
    "train_tf_while_loop": while_loop,
  }
  tiny.build(tmp_path / "ended", **settings, train_steps=20).run()
  tiny.build(tmp_path / "whole", **settings, train_steps=5).run()
  one, two = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("ended", "whole"))
  assert one == two
  tiny.assert_same_contents(tmp_path / "ended" / "ckpt-5", tmp_path / "whole" / "ckpt-5")


@pytest.mark.parametrize("interval", [1, 5, 100])
def test_an_evaluation_at_the_end_of_the_data_is_done_once(tmp_path, interval):
  evaluated = []
  tiny.build(
    tmp_path,
    task_class=tiny.FiniteTask,
    train_steps=20,
    validation_interval=interval,
    session={"eval_actions": [lambda event: evaluated.append(event.step)]},
  ).run()
  assert evaluated == ([1, 2, 3, 4, 5] if interval == 1 else [5])


def test_a_run_whose_data_ended_asked_again_trains_nothing_and_evaluates_once(tmp_path):
  settings = {"task_class": tiny.FiniteTask, "train_steps": 20, "validation_interval": 100}
  first = tiny.build(tmp_path, **settings).run()
  before = (tmp_path / "history.jsonl").read_bytes()
  evaluated = []
  again = tiny.build(
    tmp_path,
    **settings,
    session={"eval_actions": [lambda event: evaluated.append(event.step)]},
  )
  result = again.run()
  assert result.step == 5 and evaluated == [5]
  assert result.metrics == first.metrics
  assert (tmp_path / "history.jsonl").read_bytes() == before


class Writing(tiny.FiniteTask):
  """Writes a file in every step."""

  path = ""

  def train_step(self, inputs, **kwargs):
    tf.io.write_file(self.path, "x" * 100)
    return super().train_step(inputs, **kwargs)


def test_a_full_disk_in_the_step_is_not_taken_for_the_end_of_the_data(tmp_path, monkeypatch):
  monkeypatch.setattr(Writing, "path", str(tmp_path / "written"))
  with contextlib.ExitStack() as stack:

    def fill(event):
      built.session.store.wait()
      stack.enter_context(faults.full_disk())

    built = tiny.build(tmp_path, mode="train", task_class=Writing, session={"train_actions": [fill]})
    with pytest.raises(tf.errors.OutOfRangeError, match="written; File too large"):
      built.run()
  assert not built.session.loop.input_ended
