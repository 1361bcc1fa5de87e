"""Checkpoints at chosen steps, the best by several rules, the history, and several evaluation sets."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best_folder import read_record
from official_trainer.checkpoint.config import BestCheckpointConfig
from official_trainer.config.loading import load
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from tests import tiny
from tests.faults.values import points
from tests.trainer_features import split_task
from tests.trainer_features.split_task import scored

SPLIT_TASK = "tests.trainer_features.split_task:SplitTask"
TWO_AT_A_TIME = {"validation_data": {"global_batch_size": 2}}
"""Evaluation batches of 2, 2, 2 and 1 examples."""


@pytest.fixture(scope="module", autouse=True)
def no_picture():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    yield


def run(folder, mode="train_and_eval", **settings):
  """Runs the tiny experiment on the split task, as the command line does."""
  values = {"task.task_class": SPLIT_TASK, "runtime.seed": tiny.SEED, **settings}
  text = ",".join(f"{key}={value}" for key, value in values.items())
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=text, mode=mode)
  return Runner(loaded, mode=mode, model_dir=str(folder), quiet=True).run()


@pytest.fixture(scope="module")
def with_two_sets(tmp_path_factory):
  """A run of five steps with an evaluation at 2, 4 and 5, each of the validation set and of the training split."""
  folder = tmp_path_factory.mktemp("with_two_sets")
  result = run(
    folder,
    **{
      "trainer.train_steps": 5,
      "task.validation_data.global_batch_size": 4,
      "task.evaluation_sets.train_split.tfds_split": "train",
      "task.evaluation_sets.train_split.global_batch_size": 6,
      "trainer.best_checkpoint_export_subdir": "best_ckpt",
      "trainer.best_checkpoint_eval_metric": "train_split|validation_loss",
    },
  )
  return folder, result


# ---- Checkpoints -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred_steps(tmp_path_factory):
  folder = tmp_path_factory.mktemp("hundred_steps")
  saves = []
  built = tiny.build(
    folder, mode="train", train_steps=100, steps_per_loop=10, checkpoint_interval=10, max_to_keep=1,
    checkpoints_at=(3, 17, 20),
  )  # fmt: skip
  save = built.session.store.save
  built.session.store.save = lambda step: saves.append(step) or save(step)
  initial = [variable.numpy() for variable in built.trainer.model.variables]
  before = tiny.build(folder.parent / "unused", mode="train").trainer.model.variables
  assert all(np.array_equal(one, other.numpy()) for one, other in zip(initial, before, strict=True))
  built.run()
  return folder, saves


def test_t10_chosen_steps_are_saved_exactly_whatever_the_length_of_the_loop(hundred_steps):
  folder, saves = hundred_steps
  assert [step for step in saves if step < 20] == [0, 3, 10, 17]
  assert {3, 17} < set(tiny.committed(folder))


def test_t11_kept_copies_still_load_after_the_others_have_rolled_on(hundred_steps):
  folder, _ = hundred_steps
  # Those of the list do not count among the newest, also where one falls on the interval.
  assert tiny.committed(folder) == [3, 17, 20, 100]
  for step in (3, 17, 20):
    prefix = manifest.checkpoint_prefix(str(folder), step)
    manifest.verify(prefix)
    result = tiny.build(folder, mode="eval", session={"checkpoint": prefix}).run()
    assert result.step == step and np.isfinite(result.metrics["validation_loss"])


def test_t12_a_fresh_start_is_saved_as_step_0_with_the_initial_weights(tmp_path):
  built = tiny.build(tmp_path, mode="train", train_steps=2)
  initial = [variable.numpy() for variable in built.trainer.model.variables]
  built.run()
  saved = tiny.contents(tmp_path / "ckpt-0")
  weights = {name: value for name, value in saved.items() if name.startswith("model/")}
  assert sorted(value.tobytes() for value in weights.values()) == sorted(value.tobytes() for value in initial)


def test_d58_the_final_step_is_saved_once_on_the_cadence_or_off_it(hundred_steps, tmp_path):
  _, saves = hundred_steps
  assert saves.count(100) == 1
  built, off = tiny.build(tmp_path, mode="train", train_steps=5, checkpoint_interval=4), []
  save = built.session.store.save
  built.session.store.save = lambda step: off.append(step) or save(step)
  built.run()
  assert off == [0, 4, 5]


# ---- The best --------------------------------------------------------------------------------------

UP_DOWN = {
  "best_checkpoint_export_subdir": "best_up",
  "best_checkpoint_eval_metric": "up",
  "best_checkpoints": (BestCheckpointConfig(subdir="best_down", eval_metric="down", metric_comp="lower", top_k=2),),
}


def best_step(folder, name):
  return read_record(str(folder / name))["best_ckpt_global_step"]


def test_t13_t14_the_highest_of_one_metric_and_the_lowest_of_another_at_the_same_time(tmp_path):
  task = scored({2: (0.1, 0.9), 4: (0.9, 0.7), 6: (0.5, 0.3)})
  built = tiny.build(tmp_path, task_class=task, **UP_DOWN)
  weights = {}
  evaluate = built.trainer.evaluate

  def noted(num_steps):
    weights[built.state.step] = [variable.numpy().tobytes() for variable in built.trainer.model.variables]
    return evaluate(num_steps)

  built.trainer.evaluate = noted
  built.run()
  assert [best_step(tmp_path, name) for name in ("best_up", "best_down")] == [4, 6]
  assert [r["best_ckpt_global_step"] for r in read_record(str(tmp_path / "best_down"))["best_ckpt_ranking"]] == [6, 4]
  for name, step in (("best_up", 4), ("best_down", 6)):
    exported = tiny.contents(tmp_path / name / f"best_ckpt-{step}")
    found = [value.tobytes() for key, value in exported.items() if key.startswith("model/")]
    assert sorted(found) == sorted(weights[step])


@pytest.mark.parametrize(("ties", "step"), [("first", 2), ("last", 6)])
def test_t15_the_best_is_judged_from_what_is_kept_and_an_equal_value_counts_as_the_rule_says(tmp_path, ties, step):
  task = scored({2: (0.9, 1.0), 4: (0.5, 1.0), 6: (0.9, 1.0)})
  settings = {**UP_DOWN, "best_checkpoint_ties": ties}
  with pytest.raises(tiny.Interrupted):
    tiny.build(tmp_path, task_class=task, **settings, session=tiny.interrupted_by(4)).run()
  assert best_step(tmp_path, "best_up") == 2
  tiny.build(tmp_path, task_class=task, **settings).run()
  assert best_step(tmp_path, "best_up") == step


# ---- The history -----------------------------------------------------------------------------------


def test_t16_the_history_is_in_the_checkpoint_and_has_no_gap_and_no_row_twice_after_restarts(tmp_path):
  settings = {"checkpoint_interval": 4, "train_steps": 10}
  for step, mode in ((6, "train"), (8, "validation")):
    with pytest.raises(tiny.Interrupted):
      tiny.build(tmp_path, **settings, session=tiny.interrupted_by(step, mode)).run()
  history = tiny.build(tmp_path, **settings).run().state.host.history
  steps = [2, 4, 6, 8, 10]
  assert [(row.step, row.mode) for row in history] == [(s, mode) for s in steps for mode in ("train", "validation")]
  assert tiny.rows(tmp_path) == [(row.step, row.mode) for row in history]
  assert [step for step, _ in history.series("validation", "accuracy")] == steps
  assert history.best("validation", "validation_loss") == min(
    history.series("validation", "validation_loss"), key=lambda pair: pair[1]
  )
  saved = json.loads(tiny.contents(tmp_path / "ckpt-8")["host/.ATTRIBUTES/VARIABLE_VALUE"])
  assert [row[:2] for row in saved["history"]] == [[row.step, row.mode] for row in history][:7]


# ---- Several evaluation sets -----------------------------------------------------------------------


def test_t22_t39_the_training_split_is_evaluated_beside_the_validation_set_under_the_same_tags(with_two_sets):
  folder, result = with_two_sets
  history = result.state.host.history
  assert history.modes == ["train", "validation", "train_split"]
  assert history.metrics("train_split") == ["accuracy", "validation_loss"]
  assert set(history.metrics("validation")) > set(history.metrics("train_split"))
  for mode in ("validation", "train_split"):
    for tag in ("accuracy", "validation_loss"):
      assert points(folder / mode, tag) == [(s, np.float32(v)) for s, v in history.series(mode, tag)]
  assert history.series("validation", "accuracy") != history.series("train_split", "accuracy")
  assert tiny.rows(folder)[-2:] == [(5, "validation"), (5, "train_split")]
  assert result.logs["train_split"]["accuracy"] == history.last("train_split").metrics["accuracy"]
  record = read_record(str(folder / "best_ckpt"))
  best = history.best("train_split", "validation_loss")
  assert (record["best_ckpt_global_step"], record["train_split"]["validation_loss"]) == best


def test_t26_d65_evaluations_go_on_where_the_one_before_ended_when_asked_to_also_after_a_restart(tmp_path):
  def batches(name, **settings):
    task = scored({})
    settings = {"task_class": task, "validation_steps": 2, **TWO_AT_A_TIME, **settings}
    with pytest.raises(tiny.Interrupted):
      tiny.build(tmp_path / name, **settings, session=tiny.interrupted_by(4)).run()
    tiny.build(tmp_path / name, **settings).run()
    return task.evaluated

  assert batches("continues", recreate_iterator_for_each_eval=False) == [(2, [0, 1]), (4, [2, 3]), (6, [0, 1])]
  assert batches("begins anew") == [(2, [0, 1]), (4, [0, 1]), (6, [0, 1])]


def test_t38_training_saving_evaluation_best_and_history_come_in_one_order(tmp_path):
  events = []
  task = scored({2: (0.5, 0.5)})
  built = tiny.build(
    tmp_path, task_class=task, train_steps=2, **UP_DOWN,
    session={
      "train_actions": [lambda event: events.append("after the loop")],
      "eval_actions": [lambda event: events.append(f"after the evaluation, row {event.step} is known: "
                                                   f"{built.state.host.history.find(2, 'validation') is not None}")],
    },
  )  # fmt: skip
  trainer, store = built.trainer, built.session.store
  train, save = trainer.train, store.save
  trainer.train = lambda num_steps: events.append("train") or train(num_steps)
  store.save = lambda step: events.append(f"save {step}") or save(step)
  reduce = trainer.task.reduce_aggregated_logs

  def evaluated(logs, global_step=None):
    events.append(f"evaluate {int(global_step)}")
    return reduce(logs, global_step=global_step)

  trainer.task.reduce_aggregated_logs = evaluated
  for rule in trainer.checkpoint_exporter:
    export = rule.maybe_export_checkpoint
    rule.maybe_export_checkpoint = lambda *args, e=export, r=rule: events.append(f"best {r.metric_name}") or e(*args)
  built.run()
  assert events == [
    "evaluate 0",  # One batch, to learn the names of the metrics; the result is discarded.
    "save 0", "train", "save 2", "after the loop", "evaluate 2", "best up", "best down",
    "after the evaluation, row 2 is known: True",
  ]  # fmt: skip


def test_t44_without_evaluation_there_is_one_long_epoch_and_no_folder_of_it(tmp_path):
  result = run(tmp_path, mode="train", **{"trainer.validation_steps": 0, "trainer.train_steps": 4})
  assert result.step == 4 and result.logs == {}
  assert (tmp_path / "train").is_dir()
  assert not (tmp_path / "validation").exists() and not (tmp_path / "eval").exists()
  assert {mode for _, mode in tiny.rows(tmp_path)} == {"train"}


# ---- How much of the data --------------------------------------------------------------------------


def count_examples(trainer):
  """Makes a trainer report how many examples it evaluated, in how many batches."""
  found = []
  end = trainer.eval_end

  def counted(logs=None):
    found.append((float(trainer.validation_loss.count.numpy()), int(trainer.eval_batches.numpy())))
    return end(logs) if logs else end()

  trainer.eval_end = counted
  return found


def test_d37_d38_an_evaluation_has_its_own_batch_size_and_sees_the_last_partial_batch(tmp_path):
  evaluation = tiny.build(tmp_path, task_class=split_task.SplitTask, train_steps=2)
  evaluated = count_examples(evaluation.trainer)
  evaluation.run()
  assert evaluated == [(split_task.NUM_VALIDATION, 2)]  # Seven examples in batches of six; training has batches of 4.

  class Dropping(split_task.SplitTask):
    def build_source(self, params):
      return None if params.is_training else super().build_source(params)

    def build_inputs(self, params, input_context=None):
      dataset = tf.data.Dataset.from_tensor_slices(tiny.examples())
      return dataset.batch(params.global_batch_size, drop_remainder=params.drop_remainder)

  once = tiny.build(tmp_path / "once", task_class=Dropping, train_data={"global_batch_size": 6}, train_steps=9)
  assert once.run().step == 3  # 20 examples are three full batches of six.


def test_d39_a_number_of_evaluation_steps_can_be_given(tmp_path):
  built = tiny.build(tmp_path, task_class=split_task.SplitTask, train_steps=2, validation_steps=1)
  evaluated = count_examples(built.trainer)
  built.run()
  assert evaluated == [(6, 1)]


# ---- The end ---------------------------------------------------------------------------------------


def test_d55_the_last_step_has_a_report_whatever_the_interval(with_two_sets):
  folder, _ = with_two_sets
  assert [step for step, _ in points(folder / "train", "training_loss")] == [2, 4, 5]


def test_d56_the_last_step_is_evaluated_once_on_the_cadence_or_off_it(with_two_sets, tmp_path):
  folder, _ = with_two_sets
  assert tiny.steps_of(folder, "validation") == [2, 4, 5]
  task = scored({})
  tiny.build(tmp_path, task_class=task, **TWO_AT_A_TIME, train_steps=4, validation_interval=4).run()
  assert [step for step, _ in task.evaluated] == [4]


def test_d59_a_finished_run_that_is_started_again_trains_nothing_and_evaluates(tmp_path):
  first = tiny.build(tmp_path, train_steps=2).run()
  again = tiny.build(tmp_path, train_steps=2)
  again.trainer.train = lambda num_steps: pytest.fail("trained")
  result = again.run()
  assert result.step == 2 and result.metrics == first.metrics and result.metrics
