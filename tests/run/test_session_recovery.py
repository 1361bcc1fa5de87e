"""A run that diverges goes back, leaves out the batches it diverged on, and ends as if they had never been there."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.anchor import Anchor
from official_trainer.data.indexed import IndexedInput
from official_trainer.errors import TrainingDiverged
from official_trainer.run import rollback
from official_trainer.run_record import Recovery, load_record
from official_trainer.testing.compare import differences
from tests import small_tasks, tiny

STEPS = 14
SETTINGS = {**tiny.EVERYTHING, "train_steps": STEPS, "recovery_max_trials": 2}


def poisoned(*batches: int, base: type = tiny.LongTask) -> type[tiny.LongTask]:
  """Returns a task of which one example in each of these batches is not finite."""
  numbers = tiny.ArraySource(np.arange(tiny.LongTask.num_examples))
  stream = IndexedInput(numbers, global_batch_size=tiny.BATCH_SIZE, seed=tiny.SEED, shuffle=True)
  order = [batch.inputs.numpy() for batch in stream.dataset(0, Anchor.start(tiny.BATCH_SIZE)).take(max(batches) + 1)]
  return type("Poisoned", (base,), {"poisoned": tuple(int(order[batch][-1]) for batch in batches)})


def recoveries(folder):
  return load_record(str(folder)).recoveries


def assert_same_run(folder, other):
  assert tiny.committed(folder) == tiny.committed(other) != []
  for step in tiny.committed(folder):
    tiny.assert_same_contents(folder / f"ckpt-{step}", other / f"ckpt-{step}")
  assert (folder / "history.jsonl").read_bytes() == (other / "history.jsonl").read_bytes()
  assert differences(folder, other) == []  # The best weights among them.


def excluding(folder, *windows, task_class, **settings):
  """Runs what never saw the batches of these windows, because its config says so."""
  tiny.build(folder, task_class=task_class, train_data={"skip_steps": windows}, **{**SETTINGS, **settings}).run()
  assert load_record(str(folder)) is None


# Batch 8 is used between steps 8 and 9: by the inner loop that ends at the checkpoint of step 9, inside a report.
@pytest.mark.parametrize(("batch", "start", "back_to"), [(8, 8, 6), (0, 0, 0), (13, 12, 12)])
def test_the_healed_run_is_bit_identical_to_one_whose_config_leaves_the_window_out(tmp_path, batch, start, back_to):
  task = poisoned(batch)
  healed = tiny.build(tmp_path / "healed", task_class=task, **SETTINGS)
  assert healed.run().step == STEPS
  (recovery,) = recoveries(tmp_path / "healed")
  assert recovery.first == start <= batch < recovery.end == recovery.step
  assert recovery.what == "the training loss is nan"
  assert f"Going back to step {back_to} and leaving out batches {start} to {recovery.end - 1}" in healed.said
  excluding(tmp_path / "excluded", recovery.window, task_class=task)
  assert_same_run(tmp_path / "healed", tmp_path / "excluded")


@pytest.mark.usefixtures("logical_cpus")
def test_a_divergence_of_one_replica_sends_all_of_them_back(tmp_path):
  features, targets = small_tasks.rows(48)
  features[11] = np.nan  # In the second half of batch 2, which is the second replica's.

  def run(folder, **changes):
    config = small_tasks.experiment(
      optimizer_config=small_tasks.optimization("adam", ema=tiny.EmaConfig(average_decay=0.9)),
      recovery_max_trials=1,
      train_data={"shuffle": False, **changes},
    )
    task = functools.partial(
      small_tasks.Regression,
      train=(features, targets),
      layers=functools.partial(small_tasks.normalised, synchronized=False),
    )
    trainer = small_tasks.build_trainer(config, task=task, num_replicas=2)
    small_tasks.session(trainer, folder, mode="train").run()
    return small_tasks.bits(trainer)

  healed = run(tmp_path / "healed")
  assert [recovery.window for recovery in recoveries(tmp_path / "healed")] == [(2, 4)]
  assert run(tmp_path / "excluded", skip_steps=((2, 4),)) == healed


def test_two_windows_are_left_out_one_after_the_other(tmp_path):
  task = poisoned(5, 11)
  tiny.build(tmp_path / "healed", task_class=task, **SETTINGS).run()
  windows = [recovery.window for recovery in recoveries(tmp_path / "healed")]
  # Once batches 4 and 5 are gone, batch 11 is used between steps 9 and 10.
  assert windows == [(4, 6), (11, 14)]
  excluding(tmp_path / "excluded", *windows, task_class=task)
  assert_same_run(tmp_path / "healed", tmp_path / "excluded")


def test_more_divergences_than_trials_end_the_run_with_what_was_tried(tmp_path):
  built = tiny.build(tmp_path, task_class=poisoned(2, 5, 11), **SETTINGS)
  with pytest.raises(TrainingDiverged) as raised:
    built.run()
  error = raised.value
  assert len(error.tried) == 2 and error.window == (error.window[0], error.window[0] + error.step - error.start)
  text = str(error)
  assert "the training loss is nan" in text
  assert "tried: at step 3 the training loss is nan; batches 0 to 2 were left out" in text
  assert f"[{error.window[0]}, {error.window[1]}] to task.train_data.skip_steps" in text
  # Attempts are counted over all starts of the run.
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=poisoned(2, 5, 11), **SETTINGS).run()
  assert len(recoveries(tmp_path)) == 2


def test_a_run_that_may_not_go_back_ends_and_saves_nothing_of_it(tmp_path):
  with pytest.raises(TrainingDiverged, match="training loss is nan"):
    tiny.build(tmp_path, task_class=poisoned(8), **{**SETTINGS, "recovery_max_trials": 0}).run()
  assert tiny.committed(tmp_path)[-1] == 6


@pytest.mark.parametrize("crash_at", [9])
def test_a_healed_run_that_crashes_later_still_leaves_the_window_out(tmp_path, crash_at):
  task = poisoned(5)
  crashing = tiny.build(tmp_path / "healed", task_class=task, session=tiny.interrupted_by(crash_at), **SETTINGS)
  with pytest.raises(tiny.Interrupted):
    crashing.run()
  tiny.build(tmp_path / "healed", task_class=task, **SETTINGS).run()
  excluding(tmp_path / "excluded", (4, 6), task_class=task)
  assert_same_run(tmp_path / "healed", tmp_path / "excluded")


def test_a_crash_between_the_note_and_the_return_forgets_nothing(tmp_path, monkeypatch):
  task = poisoned(5)
  crashing = tiny.build(tmp_path / "healed", task_class=task, **SETTINGS)

  def crash(*args):
    raise tiny.Interrupted

  monkeypatch.setattr(crashing.session.store, "restore_latest", crash)
  monkeypatch.setattr(crashing.session._start, "resume_or_initialise", lambda: crashing.trainer.initialize())
  with pytest.raises(tiny.Interrupted):
    crashing.run()
  assert len(recoveries(tmp_path / "healed")) == 1
  again = tiny.build(tmp_path / "healed", task_class=task, **SETTINGS)
  again.run()
  assert "diverged" not in again.said and len(recoveries(tmp_path / "healed")) == 1
  excluding(tmp_path / "excluded", (4, 6), task_class=task)
  assert_same_run(tmp_path / "healed", tmp_path / "excluded")


class PoisonedGradient(tiny.LongTask):
  """The loss of a poisoned example is 0, its gradient is not finite."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    is_bad = tf.math.is_nan(tf.reduce_sum(model_outputs, axis=-1))
    clean = tf.where(is_bad[:, tf.newaxis], 0.0, model_outputs)
    loss = super().build_losses(labels, clean)
    weights = tf.reduce_sum(self.kernel)
    return tf.where(is_bad, tf.sqrt(weights - weights), loss)

  def build_model(self):
    model = super().build_model()
    self.kernel = model.trainable_variables[0]
    return model


def test_weights_that_a_finite_loss_spoilt_are_found_in_the_loop_that_spoilt_them(tmp_path):
  # The checkpoint is far away: without looking at the weights, the loop after the bad one would be blamed.
  settings = {"train_steps": 8, "steps_per_loop": 2, "checkpoint_interval": 8, "recovery_max_trials": 1}
  tiny.build(tmp_path, task_class=poisoned(3, base=PoisonedGradient), **settings).run()
  (recovery,) = recoveries(tmp_path)
  assert recovery.window == (2, 4)
  assert "variables are not finite" in recovery.what


class Pipeline(tiny.LongTask):
  """The same examples through a plain tf.data pipeline."""

  def build_source(self, params):
    self.examples = super().build_source(params)
    return None

  def build_inputs(self, params, input_context=None):
    features, labels = tiny.examples(self.num_examples if params.is_training else tiny.NUM_EXAMPLES)
    if params.is_training:
      features[list(self.poisoned)] = np.nan
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(params.global_batch_size)
    return dataset.repeat() if params.is_training else dataset


def test_a_plain_pipeline_steps_over_the_window(tmp_path):
  task = type("Poisoned", (Pipeline,), {"poisoned": (5 * tiny.BATCH_SIZE,)})
  tiny.build(tmp_path / "healed", task_class=task, **SETTINGS).run()
  assert [recovery.window for recovery in recoveries(tmp_path / "healed")] == [(4, 6)]
  excluding(tmp_path / "excluded", (4, 6), task_class=task)
  assert_same_run(tmp_path / "healed", tmp_path / "excluded")


def test_an_input_without_position_goes_on_after_the_window(tmp_path):
  task = type("Poisoned", (Pipeline,), {"poisoned": (5 * tiny.BATCH_SIZE,)})
  built = tiny.build(tmp_path, task_class=task, train_data={"resume": "none"}, **SETTINGS)
  assert built.run().step == STEPS
  assert len(recoveries(tmp_path)) == 1


def test_the_learning_rate_is_cut_for_each_time_and_stays_cut_after_a_restart(tmp_path):
  task = poisoned(5)
  settings = {**SETTINGS, "recovery_learning_rate_factor": 0.5}
  crashing = tiny.build(tmp_path, task_class=task, session=tiny.interrupted_by(12), **settings)
  with pytest.raises(tiny.Interrupted):
    crashing.run()
  tiny.build(tmp_path, task_class=task, **settings).run()
  lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
  rates = {row["step"]: row["metrics"]["learning_rate"] for row in lines if row["mode"] == "train"}
  # It went back to step 3: the whole first report was made before.
  assert rates == {step: pytest.approx(0.05) for step in (4, 8, 12, 14)}


def test_the_record_is_committed_before_the_state_goes_back(tmp_path, monkeypatch):
  built = tiny.build(tmp_path, task_class=poisoned(5), **SETTINGS)
  noted = []
  restore = built.session.store.restore_latest

  def note(*args):
    noted.append(len(recoveries(tmp_path)) if load_record(str(tmp_path)) else 0)
    return restore(*args)

  monkeypatch.setattr(built.session.store, "restore_latest", note)
  built.run()
  assert noted == [0, 1]
  assert recoveries(tmp_path) == (Recovery(step=6, first=4, end=6, what="the training loss is nan", back_to=3),)
  assert rollback.load_record(str(tmp_path)).seed == tiny.SEED


def test_bad_updates_are_left_out_and_counted_without_going_back(tmp_path):
  task = poisoned(5, 7)
  built = tiny.build(tmp_path, task_class=task, skip_nonfinite_updates=True, **SETTINGS)
  assert built.run().step == STEPS
  assert load_record(str(tmp_path)) is None
  assert int(built.trainer.optimizer.iterations) == STEPS - 2
  lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
  counts = {row["step"]: row["metrics"]["skipped_updates"] for row in lines if row["mode"] == "train"}
  assert counts == {4: 0.0, 8: 2.0, 12: 0.0, 14: 0.0}
  assert all(np.isfinite(row["metrics"]["training_loss"]) for row in lines if row["mode"] == "train")


def test_a_run_that_left_out_updates_is_resumed_inside_a_report_bit_for_bit(tmp_path):
  task = poisoned(5)
  settings = {**SETTINGS, "skip_nonfinite_updates": True}
  tiny.build(tmp_path / "whole", task_class=task, **settings).run()
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path / "parts", task_class=task, session=tiny.interrupted_by(6), **settings).run()
  tiny.build(tmp_path / "parts", task_class=task, **settings).run()
  assert_same_run(tmp_path / "whole", tmp_path / "parts")


# The report showed a loss and an accuracy of 0.
def test_a_report_of_no_applied_update_shows_no_metrics(tmp_path):
  tiny.build(tmp_path, task_class=poisoned(2, 3), skip_nonfinite_updates=True).run()
  lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
  rows = {row["step"]: row["metrics"] for row in lines if row["mode"] == "train"}
  assert rows[4] == {"skipped_updates": 2.0, "learning_rate": rows[2]["learning_rate"]}
  assert rows[6]["training_loss"] > 0


def test_a_run_that_began_with_another_model_and_diverges_says_that_it_cannot_go_back(tmp_path):
  settings = {"checkpoint_interval": 6, "steps_per_loop": 2, "validation_interval": 20, "recovery_max_trials": 1}
  tiny.build(tmp_path, task_class=tiny.LongTask, train_steps=6, task={"hidden": (4,)}, **settings).run()

  def grown():
    session = {"may_differ": ["model", "optimizer"]}
    task = {"hidden": (5,)}
    return tiny.build(tmp_path, task_class=poisoned(7), train_steps=12, task=task, session=session, **settings)

  with pytest.raises(TrainingDiverged, match="nothing to go back to. Started again, it leaves out batches 6 to 7"):
    grown().run()
  assert grown().run().step == 12


class Hot(tiny.LongTask):
  """The loss of a poisoned example is finite, and far too large."""

  poison = 1e4

  def build_losses(self, labels, model_outputs, aux_losses=None):
    is_hot = tf.reduce_max(tf.abs(model_outputs), axis=-1) > 1e3
    return tf.where(is_hot, 1e6, super().build_losses(labels, tf.where(is_hot[:, tf.newaxis], 0.0, model_outputs)))


def test_an_inner_loop_is_judged_by_its_own_loss(tmp_path):
  # The mean since the last report holds the loss of step 1, from before the bound is enforced.
  task = poisoned(0, base=Hot)
  settings = {"train_steps": 8, "steps_per_loop": 4, "checkpoint_interval": 2, "recovery_max_trials": 2}
  tiny.build(tmp_path, task_class=task, loss_upper_bound=100.0, recovery_begin_steps=3, **settings).run()
  assert load_record(str(tmp_path)) is None


def test_the_loop_whose_loss_is_above_the_bound_is_left_out_though_the_report_is_longer(tmp_path):
  task = poisoned(5, base=Hot)
  settings = {"train_steps": 8, "steps_per_loop": 8, "checkpoint_interval": 2, "recovery_max_trials": 1}
  tiny.build(tmp_path, task_class=task, loss_upper_bound=100.0, **settings).run()
  (recovery,) = recoveries(tmp_path)
  assert recovery.window == (4, 6)
  assert "above trainer.loss_upper_bound (100)" in recovery.what
