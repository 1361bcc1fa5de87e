import dataclasses

import pytest

from official_trainer.config import base
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.config import EmaConfig, OptimizationConfig, OptimizerConfig, SgdConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetConfig:
  widths: tuple[int, ...] = (1, 2)
  names: dict[str, list[str]] = dataclasses.field(default_factory=lambda: {"a": ["b"]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyTask(TaskConfig):
  model: NetConfig = dataclasses.field(default_factory=NetConfig)
  smoothing: float = 1e-7


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyExperiment(ExperimentConfig):
  task: MyTask = dataclasses.field(default_factory=MyTask)


FULL = MyExperiment(
  task=MyTask(
    train_data=DataConfig(input_path=("a", "b"), global_batch_size=8, is_training=True),
    validation_data=DataConfig(input_path={"x": "y"}),
    smoothing=0.1,
    model=NetConfig(widths=(3,), names={}),
  ),
  trainer=TrainerConfig(
    optimizer_config=OptimizationConfig(
      optimizer=OptimizerConfig(type="adam", sgd=SgdConfig(momentum=0.5)), ema=EmaConfig()
    ),
    best_checkpoints=(BestCheckpointConfig(subdir="a", eval_metric="b", metric_comp="lower"),),
    checkpoints_at=(3, 17),
    continuous_eval_timeout=None,
  ),
)


@pytest.mark.parametrize("config", [MyExperiment(), FULL, ExperimentConfig()])
def test_a_config_comes_back_equal_from_dictionaries_and_from_yaml(config):
  assert base.from_dict(type(config), base.to_dict(config)) == config
  assert base.from_yaml(type(config), base.to_yaml(config)) == config


def test_a_choice_shows_its_kind_and_what_differs():
  written = base.to_dict(FULL.trainer.optimizer_config.optimizer)
  assert list(written) == ["type", "sgd", "adam"]
  assert base.to_dict(OptimizerConfig()) == {"type": None}
  kept = base.to_dict(OptimizerConfig(type="adam"), keep=["x.lamb.epsilon"], path="x")
  assert list(kept) == ["type", "adam", "lamb"]


def test_missing_keys_are_defaults_and_unknown_ones_are_refused():
  assert base.from_dict(TrainerConfig, {"train_steps": 3}) == TrainerConfig(train_steps=3)
  with pytest.raises(ConfigError, match=r"x\.train_step: unknown key.*'x\.train_steps'") as raised:
    base.from_dict(TrainerConfig, {"train_step": 3, "max_to_keep": 0}, "x")
  assert [problem.path for problem in raised.value.problems] == ["x.train_step", "x.max_to_keep"]


def test_a_value_that_yaml_cannot_hold_is_named():
  with pytest.raises(ConfigError, match=r"model\.widths\.0: must be plain data"):
    base.to_dict(MyTask(model=NetConfig(widths=(object(),))))


def test_configs_are_frozen_and_keyword_only():
  with pytest.raises(dataclasses.FrozenInstanceError):
    FULL.trainer = TrainerConfig()
  with pytest.raises(TypeError):
    TrainerConfig(OptimizationConfig())
