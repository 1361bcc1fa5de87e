"""What does not fit together in exports and writers is found before anything starts."""

import pytest

from official_trainer.config.checks import problems
from official_trainer.config.checks_export import export_problems, writer_problems
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.export.config import ExportConfig
from official_trainer.optim.config import (
  ConstantLrConfig,
  EmaConfig,
  LrConfig,
  OptimizationConfig,
  OptimizerConfig,
)
from official_trainer.writers.config import WandbConfig

BEST = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
EMA = {"optimizer_config": OptimizationConfig(ema=EmaConfig())}


def found(check, **trainer):
  return {problem.path: problem.message for problem in check(ExperimentConfig(trainer=TrainerConfig(**trainer)))}


@pytest.mark.parametrize(
  "trainer",
  [
    {},
    {**BEST, "export": ExportConfig(on_best=True, source="best")},
    {**EMA, "export": ExportConfig(weights="averages")},
    {"export": ExportConfig(weights="raw", formats=("weights_h5", "saved_model"))},
    {"writers": ("csv", "wandb", "mine"), "wandb": WandbConfig(project="p"), "writer_arguments": {"mine": {"a": 1}}},
  ],
)
def test_what_fits_is_no_problem(trainer):
  assert found(export_problems, **trainer) == found(writer_problems, **trainer) == {}


@pytest.mark.parametrize(
  ("trainer", "path", "says"),
  [
    ({"export": ExportConfig(on_best=True)}, "trainer.export.on_best", "needs trainer.best_checkpoint_export_subdir"),
    ({"export": ExportConfig(source="best")}, "trainer.export.source", "is 'best', which needs trainer.best_"),
    ({"export": ExportConfig(weights="averages")}, "trainer.export.weights", "ema is not set: the run has none"),
    ({"export": ExportConfig(formats=())}, "trainer.export.formats", "must name at least one of saved_model, weights"),
    ({"export": ExportConfig(formats=("saved_model",) * 2)}, "trainer.export.formats", "names 'saved_model' twice"),
    (
      {**BEST, "best_checkpoint_export_subdir": "best_export/", "export": ExportConfig(on_best=True)},
      "trainer.best_checkpoint_export_subdir",
      "is 'best_export', the folder of exports",
    ),
    (
      {
        **BEST,
        "best_checkpoints": (BestCheckpointConfig(subdir="best_export", eval_metric="loss"),),
        "export": ExportConfig(on_best=True),
      },
      "trainer.best_checkpoints.0.subdir",
      "is 'best_export', the folder of exports",
    ),
  ],
)
def test_exports_that_could_not_be_made(trainer, path, says):
  messages = found(export_problems, **trainer)
  assert list(messages) == [path]
  assert says in messages[path]


@pytest.mark.parametrize(
  ("trainer", "path", "says"),
  [
    ({"writers": ("tensorboard",)}, "trainer.writers", "names 'tensorboard', which is always there"),
    ({"writers": ("csv", "csv")}, "trainer.writers", "names 'csv' twice"),
    ({"wandb": WandbConfig(project="p")}, "trainer.wandb", "has no effect unless trainer.writers names 'wandb'"),
    ({"writer_arguments": {"mine": {}}}, "trainer.writer_arguments.mine", "has no effect unless trainer.writers names"),
  ],
)
def test_settings_of_writers_that_would_do_nothing(trainer, path, says):
  messages = found(writer_problems, **trainer)
  assert list(messages) == [path]
  assert says in messages[path]


def config(strategy, **export):
  rate = LrConfig(type="constant", constant=ConstantLrConfig(learning_rate=0.1))
  optimization = OptimizationConfig(optimizer=OptimizerConfig(type="adam"), learning_rate=rate)
  trainer = TrainerConfig(
    **BEST, train_steps=2, optimizer_config=optimization, export=ExportConfig(on_best=True, **export)
  )
  return ExperimentConfig(trainer=trainer, runtime=RuntimeConfig(distribution_strategy=strategy))


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server", "tpu"])
def test_a_training_on_several_machines_leaves_the_export_of_the_best_to_its_evaluator(strategy):
  assert problems(config(strategy), "train") == problems(config(strategy), "continuous_eval") == []
  [problem] = problems(config(strategy), "train_and_eval")
  assert problem.path == "trainer.export.on_best"
  assert f"not under '{strategy}'.\nRun --mode=continuous_eval beside the training" in problem.message


@pytest.mark.parametrize("strategy", ["off", "one_device", "mirrored"])
def test_a_training_in_one_process_exports_it_itself(strategy):
  assert problems(config(strategy), "train_and_eval") == []


def test_all_problems_are_among_those_of_a_config():
  bad = ExperimentConfig(trainer=TrainerConfig(export=ExportConfig(on_best=True), writers=("history",)))
  paths = {problem.path for problem in problems(bad)}
  assert {"trainer.export.on_best", "trainer.writers"} <= paths
