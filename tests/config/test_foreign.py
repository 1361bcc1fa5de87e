import collections
import dataclasses
import types

import pytest

from official_trainer.config import foreign
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.config import EmaConfig, OptimizationConfig, OptimizerConfig, SgdConfig


def test_any_tree_of_attributes_is_read():
  Sgd = collections.namedtuple("Sgd", ["momentum", "decay"])
  source = types.SimpleNamespace(
    train_steps=5,
    best_checkpoint_metric_comp="lower",
    not_ours=1,
    checkpoints_at=[1, 2],
    optimizer_config=types.SimpleNamespace(
      optimizer={"type": "sgd", "sgd": Sgd(momentum=0.5, decay=0)},
      ema=types.SimpleNamespace(average_decay=0.5, trainable_weights_only=True),
    ),
  )
  assert foreign.read(TrainerConfig, source) == TrainerConfig(
    train_steps=5,
    best_checkpoint_metric_comp="lower",
    checkpoints_at=(1, 2),
    optimizer_config=OptimizationConfig(
      optimizer=OptimizerConfig(type="sgd", sgd=SgdConfig(momentum=0.5)),
      ema=EmaConfig(average_decay=0.5, trainable_weights_only=True),
    ),
  )


def test_a_model_config_of_any_type_is_taken_over_as_it_is():
  model = object()
  source = types.SimpleNamespace(task=types.SimpleNamespace(model=model))
  assert foreign.read(ExperimentConfig, source).task.model is model


def test_what_is_not_there_is_a_default():
  source = types.SimpleNamespace(train_data=None, validation_data=types.SimpleNamespace())
  assert foreign.read(TaskConfig, source) == TaskConfig()


def test_a_config_dict_that_raises_for_missing_names_is_read():
  class Raising(dict):
    __getattr__ = dict.__getitem__

  @dataclasses.dataclass
  class Keys:
    values: dict

    def __getattr__(self, name):
      return self.values[name]

  for source in (Raising(global_batch_size=4), Keys({"global_batch_size": 4})):
    assert foreign.read(DataConfig, source) == DataConfig(global_batch_size=4)


def test_named_paths_of_a_foreign_mapping_type_are_read():
  paths = types.SimpleNamespace(as_dict=lambda: {"a": "x"})
  source = types.SimpleNamespace(input_path=paths)
  assert foreign.read(DataConfig, source).input_path == {"a": "x"}


def test_our_own_config_is_returned_itself():
  config = TrainerConfig()
  assert foreign.read(TrainerConfig, config) is config


def test_values_that_we_cannot_hold_are_named_all_at_once():
  source = types.SimpleNamespace(steps_per_loop=0, best_checkpoint_metric_comp="max")
  with pytest.raises(ConfigError) as raised:
    foreign.read(TrainerConfig, source)
  assert [problem.path for problem in raised.value.problems] == [
    "steps_per_loop",
    "best_checkpoint_metric_comp",
  ]
