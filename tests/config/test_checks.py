import dataclasses

import pytest

from official_trainer.config import base, checks
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.fields import OneOf
from official_trainer.config.trainer import BestCheckpointConfig
from official_trainer.data.config import DataConfig


def config(**dotted):
  nested = {}
  for key, value in dotted.items():
    *parents, last = key.split("__")
    inner = nested
    for parent in parents:
      inner = inner.setdefault(parent, {})
    inner[last] = value
  return base.from_dict(ExperimentConfig, nested)


def paths(found):
  return [problem.path for problem in found]


RULES = [
  (
    {"runtime__distribution_strategy": "parameter_server", "runtime__num_virtual_devices": 2},
    "runtime.num_virtual_devices",
  ),
  ({"runtime__worker_hosts": "a:1,b:2"}, "runtime.task_index"),
  ({"runtime__worker_hosts": "a:1,b:2", "runtime__task_index": 2}, "runtime.task_index"),
  ({"runtime__task_index": 0}, "runtime.task_index"),
  ({"runtime__worker_hosts": "a,b:2", "runtime__task_index": 0}, "runtime.worker_hosts"),
  ({"runtime__worker_hosts": "a:1,b:99999", "runtime__task_index": 0}, "runtime.worker_hosts"),
  ({"runtime__worker_hosts": "a:1,a:1", "runtime__task_index": 0}, "runtime.worker_hosts"),
  (
    {"runtime__worker_hosts": "a:1,b:1", "runtime__task_index": 0, "runtime__cluster_resolver": "slurm"},
    "runtime.worker_hosts",
  ),
  ({"runtime__cluster_resolver": "kubernetes"}, "runtime.cluster_labels"),
  ({"runtime__num_gpus": 2, "runtime__num_virtual_devices": 2}, "runtime.num_virtual_devices"),
  ({"runtime__use_tpu_mp_strategy": True}, "runtime.use_tpu_mp_strategy"),
  ({"task__allow_image_summary": True}, "task.allow_image_summary"),
  ({"task__task_class": "my.module.Task"}, "task.task_class"),
  ({"task__task_class": "my/module:Task"}, "task.task_class"),
  ({"task__train_data": DataConfig(skip_steps=((0, 3), (5, 5)))}, "task.train_data.skip_steps"),
  ({"trainer__train_steps": 10, "trainer__checkpoints_at": (5, 11)}, "trainer.checkpoints_at"),
  ({"trainer__train_steps": 10, "trainer__recovery_begin_steps": 11}, "trainer.recovery_begin_steps"),
  (
    {"trainer__train_steps": 10, "task__train_data": DataConfig(skip_steps=((12, 13), (2, 4)))},
    "task.train_data.skip_steps",
  ),
  ({"task__validation_data": DataConfig(skip_steps=((0, 3),))}, "task.validation_data.skip_steps"),
  ({"task__train_data": DataConfig(tf_data_service_address="a:1")}, "task.train_data.tf_data_service_address"),
  (
    {"task__train_data": DataConfig(enable_tf_data_service=True, trainer_id="a")},
    "task.train_data.trainer_id",
  ),
  (
    {
      "task__train_data": DataConfig(
        enable_tf_data_service=True,
        enable_shared_tf_data_service_between_parallel_trainers=True,
        tf_data_service_address="a:1",
        trainer_id="a",
      )
    },
    "task.train_data.tf_data_service_job_name",
  ),
  ({"trainer__allow_tpu_summary": True}, "trainer.allow_tpu_summary"),
  ({"trainer__train_tf_function": False}, "trainer.train_tf_while_loop"),
  (
    {"trainer__eval_tf_function": False, "trainer__eval_tf_while_loop": True, "trainer__validation_steps": 3},
    "trainer.eval_tf_while_loop",
  ),
  ({"trainer__eval_tf_while_loop": True}, "trainer.eval_tf_while_loop"),
  ({"trainer__evaluate_first_loop": True}, "trainer.evaluate_first_loop"),
  ({"trainer__trainer_class": "MyTrainer"}, "trainer.trainer_class"),
  ({"trainer__runner": "my/sweeps:sweep"}, "trainer.runner"),
  ({"trainer__best_checkpoint_eval_metric": "a"}, "trainer.best_checkpoint_export_subdir"),
  ({"trainer__best_checkpoint_export_subdir": "a"}, "trainer.best_checkpoint_eval_metric"),
  ({"trainer__best_checkpoints": [{"subdir": "a"}]}, "trainer.best_checkpoints.0.eval_metric"),
  ({"trainer__best_checkpoints": [{}]}, "trainer.best_checkpoints.0"),
  (
    {"trainer__best_checkpoints": [{"subdir": "a", "eval_metric": "x"}] * 2},
    "trainer.best_checkpoints.1.subdir",
  ),
  (
    {"trainer__best_checkpoints": [{"subdir": "../a", "eval_metric": "x"}]},
    "trainer.best_checkpoints.0.subdir",
  ),
  (  # It left model_dir.
    {"trainer__best_checkpoints": [{"subdir": "a/../..", "eval_metric": "x"}]},
    "trainer.best_checkpoints.0.subdir",
  ),
  (  # The record of TensorFlow's own newest checkpoint is there.
    {"trainer__best_checkpoints": [{"subdir": ".", "eval_metric": "x"}]},
    "trainer.best_checkpoints.0.subdir",
  ),
  (
    {"trainer__best_checkpoints": [{"subdir": "validation", "eval_metric": "x"}]},
    "trainer.best_checkpoints.0.subdir",
  ),
  (
    {"trainer__train_steps": 5, "trainer__optimizer_config__ema__start_step": 5},
    "trainer.optimizer_config.ema.start_step",
  ),
  (
    {"trainer__optimizer_config__learning_rate__type": "stepwise",
     "trainer__optimizer_config__learning_rate__stepwise": {"boundaries": [2, 4], "values": [1]}},
    "trainer.optimizer_config.learning_rate.stepwise.values",
  ),
  (
    {"trainer__optimizer_config__learning_rate__type": "stepwise",
     "trainer__optimizer_config__learning_rate__stepwise":
       {"boundaries": [4, 2], "values": [1, 2, 3]}},
    "trainer.optimizer_config.learning_rate.stepwise.boundaries",
  ),
  (
    {"trainer__optimizer_config__learning_rate__type": "cosine",
     "trainer__optimizer_config__learning_rate__cosine__initial_learning_rate": 1},
    "trainer.optimizer_config.learning_rate.cosine.decay_steps",
  ),
  (
    {"trainer__optimizer_config__warmup__type": "linear"},
    "trainer.optimizer_config.warmup.linear.warmup_steps",
  ),
  (
    {"trainer__optimizer_config__optimizer__type": "sgd",
     "trainer__optimizer_config__optimizer__sgd__decay": 0.1},
    "trainer.optimizer_config.optimizer.sgd.decay",
  ),
  (
    {"trainer__optimizer_config__optimizer__type": "slide"},
    "trainer.optimizer_config.optimizer.type",
  ),
  ({"task__train_data__tfds_name": "mnist"}, "task.train_data.tfds_split"),
  (
    {"task__train_data": {"tfds_name": "mnist", "tfds_split": "train", "input_path": "x"}},
    "task.train_data.input_path",
  ),
]  # fmt: skip


@pytest.mark.parametrize(("dotted", "path"), RULES)
def test_what_does_not_fit_together_is_named(dotted, path):
  assert paths(checks.problems(config(**dotted))) == [path]


def test_a_window_at_the_last_batch_is_reached():
  data = DataConfig(skip_steps=((2, 4), (11, 13)))
  assert checks.problems(config(trainer__train_steps=10, task__train_data=data)) == []


def test_the_defaults_fit_together():
  assert checks.problems(ExperimentConfig()) == []


def test_all_problems_come_at_once():
  found = checks.problems(config(runtime__task_index=1, trainer__eval_tf_while_loop=True), "train")
  assert paths(found) == [
    "trainer.eval_tf_while_loop",
    "runtime.task_index",
    "trainer.train_steps",
    "trainer.optimizer_config.optimizer.type",
    "trainer.optimizer_config.learning_rate.type",
  ]


def test_evaluating_needs_no_optimizer_and_no_steps():
  assert checks.problems(ExperimentConfig(), "eval") == []
  found = checks.problems(config(trainer__validation_steps=0), "eval")
  assert paths(found) == ["trainer.validation_steps"]


def test_an_unknown_mode_is_refused():
  assert paths(checks.problems(ExperimentConfig(), "tarin")) == ["--mode"]


def test_a_rule_of_the_users_own_kind_of_choice_is_checked():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Backbone(OneOf):
    small: BestCheckpointConfig = dataclasses.field(default_factory=BestCheckpointConfig)

  found = checks.problems(ExperimentConfig(task=TaskConfig(model=Backbone(type="large"))))
  assert str(found[0]) == "task.model.type: must be one of small, got 'large'."
