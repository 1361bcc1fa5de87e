"""A step of a run, computed again from the checkpoint before it."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.finite import FiniteCheck
from official_trainer.crash import newest_bundle
from official_trainer.errors import ConfigError, TrainingDiverged
from official_trainer.run import session as session_module
from official_trainer.run.replay import Replay
from tests import small_tasks, tiny
from tests.run.test_session_recovery import Pipeline, PoisonedGradient, poisoned

SETTINGS = {**tiny.EVERYTHING, "steps_per_loop": 1, "checkpoint_interval": 5}


@pytest.fixture(autouse=True, scope="module")
def no_picture():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("finished")
  tiny.build(folder, task_class=tiny.LongTask, **SETTINGS).run()
  return folder


def replay(folder, step=None, *, task_class=tiny.LongTask, bundle=None, **settings):
  built = tiny.build(folder, mode="train", task_class=task_class, **{**SETTINGS, **settings})
  again = Replay(
    built.trainer,
    str(folder),
    non_finite_names=FiniteCheck(built.state.finite_variables()).non_finite_names,
    learning_rate_factor=settings.get("recovery_learning_rate_factor", 1.0),
    bundle=bundle,
  )
  with built.trainer.strategy.scope():
    return again.run(step)


def row_of(folder, step):
  rows = [json.loads(line) for line in (folder / "history.jsonl").read_text("utf-8").splitlines()]
  return next(row["metrics"] for row in rows if row["step"] == step and row["mode"] == "train")


@pytest.mark.parametrize("step", [1, 6, 9])
def test_a_step_computed_again_has_the_numbers_of_the_run(finished, step):
  before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
  report = replay(finished, step)
  assert report.metrics == row_of(finished, step)
  assert (report.step, report.batch, report.restored) == (step, step - 1, 5 * ((step - 1) // 5))
  assert report.is_finite and report.first is None
  assert 0 < report.norms["the gradients"] < 100
  assert {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()} == before


def test_the_norms_are_those_of_the_checkpoints(finished):
  # Step 5 is saved, and so is step 0; the update that ends at 5 begins at 4, which only its own norms can tell.
  report = replay(finished, 5)
  saved = tiny.contents(finished / "ckpt-5")
  weights = [saved[name] for name in saved if name.startswith("model/") and ("kernel" in name or "bias" in name)]
  norm = np.sqrt(sum(np.square(value.astype(np.float64)).sum() for value in weights))
  others = [saved[name] for name in saved if name.startswith("model/") and ("gamma" in name or "beta" in name)]
  norm = np.sqrt(norm**2 + sum(np.square(value.astype(np.float64)).sum() for value in others))
  assert report.norms["the weights after"] == pytest.approx(norm, rel=1e-12)


def test_a_crash_is_looked_into_down_to_the_first_operation_and_the_row(tmp_path):
  task = poisoned(7)
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=task, **{**SETTINGS, "steps_per_loop": 4}).run()
  bundle = newest_bundle(str(tmp_path))
  assert (bundle.kind, bundle.start, bundle.step) == ("diverged", 6, 8)
  report = replay(tmp_path, task_class=task, bundle=bundle, steps_per_loop=4)
  # Of the two steps of that loop it is the second.
  assert (report.step, report.batch, report.restored) == (8, 7, 5)
  assert not report.is_finite
  assert report.bad_inputs == ("tensor 0 of the batch in row 3",)
  assert report.first == "none, the inputs were not"
  text = str(report)
  assert "training_loss: nan" in text and "inputs that are not finite (1): tensor 0 of the batch in row 3" in text


class LogOfZero(tiny.LongTask):
  """Not finite for examples whose features are all 0."""

  poison = 0.0

  def build_model(self):
    inputs = tf_keras.layers.Input((3,))
    outputs = tf_keras.layers.Dense(2)(tf_keras.layers.Lambda(log_of_square)(inputs))
    return tf_keras.Model(inputs, outputs)


def log_of_square(features):
  return features + tf.math.log(tf.reduce_sum(tf.square(features), axis=-1, keepdims=True))


def test_the_first_operation_whose_result_is_not_finite_is_named_with_its_line(tmp_path):
  task = poisoned(2, base=LogOfZero)
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=task, **SETTINGS).run()
  report = replay(tmp_path, 3, task_class=task)
  line = log_of_square.__code__.co_firstlineno + 1
  assert report.first == f"Log at {__file__}:{line}, in log_of_square"
  assert report.bad_inputs == ()


def test_a_gradient_that_is_not_finite_under_a_finite_loss_is_named(tmp_path):
  # The look at the inputs would explain it; the row is repaired inside the loss, whose gradient is not.
  task = poisoned(2, base=PoisonedGradient)
  settings = {"task": {}, "ema": None, "train_steps": 6}
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=task, **{**SETTINGS, **settings}).run()
  report = replay(tmp_path, 3, task_class=task, **settings)
  assert np.isfinite(report.metrics["training_loss"]) and not report.is_finite
  assert len(report.bad_gradients) == 1 and report.bad_gradients[0].endswith("/kernel")
  assert len(report.bad_variables) == 3  # The kernel and its two slots.
  assert np.isnan([report.norms["the gradients"], report.norms["the update"]]).all()


def test_what_was_left_out_by_then_is_left_out_again(tmp_path):
  task = poisoned(4)
  settings = {"recovery_max_trials": 1}
  tiny.build(tmp_path, task_class=task, **{**SETTINGS, **settings}).run()
  bundle = newest_bundle(str(tmp_path))
  assert (bundle.start, bundle.step, bundle.skipped) == (4, 5, ())
  assert not replay(tmp_path, task_class=task, bundle=bundle, **settings).is_finite
  healed = replay(tmp_path, 6, task_class=task, bundle=bundle, **settings)
  assert healed.is_finite and healed.batch == 6
  assert healed.metrics == row_of(tmp_path, 6)


# Every step was replayed with the rate as it was lowered at last, also those from before the run went back.
def test_each_step_is_replayed_with_the_learning_rate_that_it_had(tmp_path):
  task = poisoned(8)
  settings = {"recovery_max_trials": 1, "recovery_learning_rate_factor": 0.5, "max_to_keep": 9}
  tiny.build(tmp_path, task_class=task, **{**SETTINGS, **settings}).run()
  for step in (5, 6, 10):
    report = replay(tmp_path, step, task_class=task, bundle=newest_bundle(str(tmp_path)), **settings)
    assert report.metrics == row_of(tmp_path, step)
  # The checkpoint of the step that it went back to need not be there any more.
  for path in tmp_path.glob("ckpt-5.*"):
    path.unlink()
  report = replay(tmp_path, 7, task_class=task, **settings)
  assert (report.restored, report.metrics) == (0, row_of(tmp_path, 7))


@pytest.mark.parametrize(
  ("step", "message"),
  [
    (None, "--replay_step: must be given: .* holds no crash bundle"),
    (0, "--replay_step: must be at least 1"),
  ],
)
def test_what_cannot_be_replayed_is_said(finished, step, message):
  with pytest.raises(ConfigError, match=message):
    replay(finished, step)


def test_without_a_checkpoint_before_the_step_those_that_are_there_are_named(tmp_path, finished):
  with pytest.raises(ConfigError, match="holds none at all"):
    replay(tmp_path, 3)


def test_an_input_without_position_cannot_be_replayed(tmp_path):
  settings = {"train_data": {"resume": "none"}, "task_class": Pipeline}
  tiny.build(tmp_path, **{**SETTINGS, **settings}).run()
  with pytest.raises(ConfigError, match="cannot be replayed: input position: not kept"):
    replay(tmp_path, 6, **settings)


@pytest.mark.usefixtures("logical_cpus")
def test_two_replicas_are_replayed_as_they_ran(tmp_path):
  config = small_tasks.experiment(steps_per_loop=1, optimizer_config=small_tasks.optimization("adam"))
  small_tasks.session(small_tasks.build_trainer(config, num_replicas=2), tmp_path, mode="train").run()
  rows = tiny.contents(tmp_path / "ckpt-8")["host/.ATTRIBUTES/VARIABLE_VALUE"]
  history = {step: row for step, _, row in json.loads(rows)["history"]}
  trainer = small_tasks.build_trainer(config, num_replicas=2)
  again = Replay(trainer, str(tmp_path), non_finite_names=list, learning_rate_factor=1.0, bundle=None)
  with trainer.strategy.scope():
    report = again.run(7)
  assert report.metrics == history[7]
  assert report.restored == 4 and report.is_finite
