from official_trainer.config.checks import problems
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.trainer import TrainerConfig
from official_trainer.optim.config import PlateauScheduleConfig, ScheduleConfig


def test_a_plateau_in_a_mode_without_evaluations_is_refused_as_it_would_never_fall():
  plateau = ScheduleConfig(type="plateau", plateau=PlateauScheduleConfig(metric="accuracy"))
  config = ExperimentConfig(trainer=TrainerConfig(train_steps=4, schedules={"learning_rate_factor": plateau}))

  def about(mode):
    found = [problem for problem in problems(config, mode) if "learning_rate_factor" in problem.path]
    return [problem.message for problem in found]

  assert about("train_and_eval") == []
  for mode in ("train", "train_and_post_eval"):
    (text,) = about(mode)
    assert text.startswith("needs evaluations during training")
