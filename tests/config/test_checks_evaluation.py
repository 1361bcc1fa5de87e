import dataclasses

import pytest

from official_trainer.actions.config import EarlyStopConfig, StopAtConfig
from official_trainer.checkpoint.config import BestCheckpointConfig
from official_trainer.config.checks import problems
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig


def found(sets=None, mode=None, **trainer):
  task = TaskConfig(evaluation_sets=sets or {})
  config = ExperimentConfig(task=task, trainer=TrainerConfig(train_steps=10, **trainer))
  if mode is not None:
    optimization = config.trainer.optimizer_config
    optimizer = dataclasses.replace(optimization.optimizer, type="sgd")
    rate = dataclasses.replace(optimization.learning_rate, type="constant")
    optimization = dataclasses.replace(optimization, optimizer=optimizer, learning_rate=rate)
    config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, optimizer_config=optimization))
  return {problem.path: problem.message for problem in problems(config, mode)}


def test_named_sets_are_fine():
  assert found({"train_split": DataConfig(tfds_split="train[:10%]"), "Test2": DataConfig()}) == {}


@pytest.mark.parametrize("name", ["a|b", "a/b", "a.b", "2nd", "", "with space", "ckpt-1"])
def test_a_name_is_a_word(name):
  assert f"got '{name}'" in found({name: DataConfig()})[f"task.evaluation_sets.{name}"]


@pytest.mark.parametrize(
  ("name", "owner"),
  [
    ("train", "taken"),
    ("validation", "taken"),
    ("eval", "taken"),
    ("crashes", "taken"),
    ("curves", "the folder of trainer.validation_summary_subdir"),
    ("best_ckpt", "the folder of trainer.best_checkpoint_export_subdir"),
    ("more", "the folder of trainer.best_checkpoints.0.subdir"),
    ("best_accuracy", "the name under which an evaluation reports a best value"),
  ],
)
def test_a_name_that_is_in_use_is_refused(name, owner):
  settings = {
    "validation_summary_subdir": "curves",
    "best_checkpoint_export_subdir": "best_ckpt",
    "best_checkpoint_eval_metric": "accuracy",
    "best_checkpoints": (BestCheckpointConfig(subdir="more/best", eval_metric="loss"),),
  }
  assert found({name: DataConfig()}, **settings) == {
    f"task.evaluation_sets.{name}": f"'{name}' is {owner}. Choose another name: it is that of a folder and of rows of"
    " the history."
  }


def test_settings_of_training_data_are_refused():
  problem = found({"a": DataConfig(is_training=True, skip_steps=((1, 2),)), "b": DataConfig(trainer_id="x")})
  assert "every example once" in problem["task.evaluation_sets.a.is_training"]
  assert "has no effect" in problem["task.evaluation_sets.a.skip_steps"]
  assert "has no effect" in problem["task.evaluation_sets.b.trainer_id"]
  assert len(problem) == 3


def test_a_tfds_set_needs_its_split_in_named_sets_too():
  assert "must name a split" in found({"a": DataConfig(tfds_name="mnist")})["task.evaluation_sets.a.tfds_split"]


def test_going_on_needs_a_number_of_batches():
  key = "trainer.recreate_iterator_for_each_eval"
  assert "while trainer.validation_steps is -1" in found(recreate_iterator_for_each_eval=False)[key]
  assert found(recreate_iterator_for_each_eval=False, validation_steps=2) == {}


def test_a_rule_that_ends_a_run_says_by_what():
  early, target = EarlyStopConfig(start_step=10), StopAtConfig(metric="accuracy")
  assert found(early_stop=early, stop_at=target) == {
    "trainer.early_stop.metric": "must name a metric.",
    "trainer.early_stop.start_step": "must be less than trainer.train_steps (10), got 10.\n"
    "The rule would never be looked at.",
    "trainer.stop_at.value": "must be set.",
  }


@pytest.mark.parametrize("mode", ["train", "train_and_post_eval", "train_and_eval", "eval"])
def test_a_rule_that_ends_a_run_needs_evaluations_during_training(mode):
  rules = {"early_stop": EarlyStopConfig(metric="a"), "stop_at": StopAtConfig(metric="a", value=1.0)}
  expected = {"trainer.early_stop", "trainer.stop_at"} if mode in ("train", "train_and_post_eval") else set()
  problem = found(mode=mode, **rules)
  assert set(problem) == expected
  assert all(f"--mode={mode} has none" in text for text in problem.values())
