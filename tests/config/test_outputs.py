import dataclasses

import pytest

from official_trainer.config import outputs
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import Origin
from official_trainer.inspect.config import ProfileConfig

USER, EXPERIMENT = Origin("--params_override"), Origin("experiment", "a.py", 3)
ASKED = {
  "checkpoints_at": (3,),
  "best_checkpoint_export_subdir": "best",
  "best_checkpoints": (BestCheckpointConfig(subdir="b", eval_metric="a"),),
  "recovery_max_trials": 1,
}


def config(**trainer):
  return ExperimentConfig(trainer=TrainerConfig(**trainer))


@pytest.mark.parametrize("name", ASKED)
def test_what_needs_checkpoints_is_refused_with_both_names_where_the_user_wrote_it(name):
  asked = config(**{name: ASKED[name]})
  assert list(outputs.problems(asked, lambda key: USER)) == []
  (problem,) = outputs.problems(asked, lambda key: USER, has_folder=False)
  assert (problem.path, problem.origin) == (f"trainer.{name}", USER)
  assert "needs checkpoints, but there is no --model_dir." in problem.message
  off = config(**{name: ASKED[name]}, save_checkpoints=False)
  (problem,) = outputs.problems(off, lambda key: USER)
  assert "needs checkpoints, but trainer.save_checkpoints is false." in problem.message


def test_what_the_experiment_asks_for_by_itself_is_left_out_aloud():
  asked = config(**ASKED, best_checkpoint_eval_metric="a")
  assert list(outputs.problems(asked, lambda key: EXPERIMENT, has_folder=False)) == []
  found, lines = outputs.kept(asked, "train", has_folder=False)
  assert found.trainer == TrainerConfig(save_checkpoints=False, write_summaries=False)
  assert lines == [
    "there is no --model_dir: nothing of this run is kept (left out: trainer.checkpoints_at, "
    "trainer.best_checkpoint_export_subdir, trainer.best_checkpoints, trainer.recovery_max_trials)"
  ]


PLACED = {"dump_graphs": {"dump_graphs": "text"}, "profile.steps": {"profile": ProfileConfig(steps=(1, 2))}}


@pytest.mark.parametrize("name", PLACED)
def test_what_needs_a_folder_is_refused_where_the_user_wrote_it_and_left_out_where_the_experiment_did(name):
  asked = config(**PLACED[name])
  assert list(outputs.problems(asked, lambda key: USER)) == []
  (problem,) = outputs.problems(asked, lambda key: USER, has_folder=False)
  assert (problem.path, problem.origin) == (f"trainer.{name}", USER)
  assert problem.message == "needs a folder, but there is no --model_dir. Leave this out, or give one."
  assert list(outputs.problems(asked, lambda key: EXPERIMENT, has_folder=False)) == []
  found, (line,) = outputs.kept(asked, "train", has_folder=False)
  assert found.trainer == TrainerConfig(save_checkpoints=False, write_summaries=False)
  assert line.endswith(f"(left out: trainer.{name})")
  assert outputs.kept(asked, "train", has_folder=True) == (asked, [])


def test_a_run_that_keeps_everything_says_nothing():
  assert outputs.kept(config(), "train_and_eval", has_folder=True) == (config(), [])


def test_each_switch_that_is_off_is_said():
  off = config(save_checkpoints=False, write_summaries=False)
  found, lines = outputs.kept(off, "train", has_folder=True)
  assert found == off
  assert lines == [
    "trainer.save_checkpoints is false: no checkpoint is saved, and a restart begins anew",
    "trainer.write_summaries is false: no curves are written",
  ]


def test_the_switch_for_checkpoints_means_nothing_to_an_evaluation():
  given = config(**ASKED, best_checkpoint_eval_metric="a", save_checkpoints=False)
  assert outputs.kept(given, "continuous_eval", has_folder=True) == (given, [])


@pytest.mark.parametrize(
  ("mode", "has_checkpoint", "is_refused"),
  [
    ("train", False, False),
    ("train_and_eval", False, False),
    ("check_tpu", False, False),
    ("eval", True, False),
    ("eval", False, True),
    ("continuous_eval", True, True),
    ("replay", False, True),
  ],
)
def test_modes_that_read_a_folder_need_one(mode, has_checkpoint, is_refused):
  found = list(outputs.folder_problems(config(), mode, has_checkpoint=has_checkpoint))
  assert [problem.path for problem in found] == ["--model_dir"] * is_refused


def test_parameter_servers_need_a_folder():
  servers = dataclasses.replace(config(), runtime=RuntimeConfig(distribution_strategy="parameter_server"))
  (problem,) = outputs.folder_problems(servers, "train", has_checkpoint=False)
  assert "must be given under parameter servers" in problem.message
