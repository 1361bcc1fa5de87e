import dataclasses

import pytest

from official_trainer.config import base, checks, steps
from official_trainer.config.durations import PositiveSteps, Steps
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.fields import setting
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.config import OptimizationConfig


def config(**trainer):
  """100 steps of 4 examples unless told otherwise."""
  task = {"train_data": {"global_batch_size": 4}, "validation_data": {"global_batch_size": 4}}
  return base.from_dict(ExperimentConfig, {"task": task, "trainer": {"train_steps": 100, **trainer}})


def unknown():
  return None


def never():
  raise AssertionError("nobody needs the size of the data")


def resolved(num_examples=never, **trainer):
  return steps.resolve(config(**trainer), num_examples)


@pytest.mark.parametrize(
  ("text", "number"),
  [
    ("2000 steps", 2000),
    ("1 epoch", 2),
    ("2 epochs", 5),
    ("1.5 epochs", 3),
    ("10 epochs", 25),
    ("9 examples", 2),
    ("1k examples", 250),
  ],
)
def test_training_counts_the_whole_batches_that_lie_within_a_duration(text, number):
  # 10 examples in batches of 4: the stream runs on over the epoch's end, after 2.5 batches.
  found, _ = resolved(lambda: 10, train_steps=text)
  assert found.trainer.train_steps == number


@pytest.mark.parametrize(("text", "number"), [("5%", 1), ("10%", 3), ("33.3%", 9), ("100%", 30), ("150%", 45)])
def test_a_percentage_is_of_the_whole_run_and_exact(text, number):
  found, _ = resolved(train_steps=30, validation_interval=text)
  assert found.trainer.validation_interval == number


def test_an_evaluation_counts_the_last_batch_even_if_it_is_a_partial_one():
  def validation_steps(text):
    return steps.resolve(config(validation_steps=text), never, lambda: 10)[0].trainer.validation_steps

  assert [validation_steps(text) for text in ("1 epoch", "9 examples", "8 examples")] == [3, 3, 2]


def test_every_field_in_steps_is_resolved_wherever_it_is():
  optimizer = {
    "ema": {"start_step": "10%"},
    "warmup": {"type": "linear", "linear": {"warmup_steps": "5%"}},
    "learning_rate": {"type": "stepwise", "stepwise": {"boundaries": ["1 epoch", "50%", 90], "offset": "1%"}},
  }
  found, _ = resolved(
    lambda: 20,
    optimizer_config=optimizer,
    checkpoints_at=[3, "50%"],
    recovery_begin_steps="2 epochs",
    steps_per_loop="8%",
  )
  trainer, rate = found.trainer, found.trainer.optimizer_config.learning_rate.stepwise
  assert (trainer.checkpoints_at, trainer.recovery_begin_steps, trainer.steps_per_loop) == ((3, 50), 10, 8)
  assert (rate.boundaries, rate.offset) == ((5, 50, 90), 1)
  assert trainer.optimizer_config.ema.start_step == 10
  assert trainer.optimizer_config.warmup.linear.warmup_steps == 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ramp:
  steps: PositiveSteps = setting(1, "Length.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyTask(TaskConfig):
  ramp: Ramp = setting(text="A ramp.", factory=Ramp)
  ramps: tuple[Ramp, ...] = setting((), "Ramps.")
  by_name: dict[str, Steps] = setting(text="By name.", factory=dict)


def test_fields_of_a_users_own_config_are_resolved_too():
  task = MyTask(ramp=Ramp(steps="5%"), ramps=(Ramp(steps="10%"), Ramp(steps=7)), by_name={"a": "1%", "b": 2})
  found, lines = steps.resolve(dataclasses.replace(config(), task=task), never)
  assert found.task == MyTask(ramp=Ramp(steps=5), ramps=(Ramp(steps=10), Ramp(steps=7)), by_name={"a": 1, "b": 2})
  assert [line.partition(":")[0] for line in lines] == ["task.ramp.steps", "task.ramps.0.steps", "task.by_name.a"]


def test_both_forms_are_said():
  _, lines = resolved(
    lambda: 1437, train_steps="90 epochs", validation_interval="5%", checkpoint_interval="1.2k examples"
  )
  assert lines == [
    "trainer.train_steps: 90 epochs = 32,332 steps (1,437 examples, batch 4)",
    "trainer.checkpoint_interval: 1.2k examples = 300 steps (batch 4)",
    "trainer.validation_interval: 5% = 1,616 steps (of 32,332 steps)",
  ]


def test_a_config_in_steps_is_returned_as_it_is_and_nobody_is_asked():
  given = config(validation_interval=7)
  found, lines = steps.resolve(given, never)
  assert found == given
  assert lines == []


def test_the_size_that_the_config_says_counts_and_the_data_are_not_asked():
  given = config(train_steps="3 epochs")
  data = dataclasses.replace(given.task.train_data, num_examples=8)
  given = dataclasses.replace(given, task=dataclasses.replace(given.task, train_data=data))
  assert steps.resolve(given, never)[0].trainer.train_steps == 6


def test_the_size_of_the_data_is_asked_once_however_many_durations_need_it():
  asked = []
  resolved(
    lambda: asked.append(1) or 40, train_steps="3 epochs", validation_interval="1 epoch", checkpoint_interval="9 epochs"
  )
  assert asked == [1]


# ---- Two ways to say one thing ---------------------------------------------------------------------------------------


def test_train_epochs_says_the_same_as_train_steps_in_epochs():
  one, _ = resolved(lambda: 10, train_steps=0, train_epochs=1.5, validation_interval="100%")
  two, _ = resolved(lambda: 10, train_steps="1.5 epochs", validation_interval="100%")
  assert one == two
  assert one.trainer.train_epochs is None and one.trainer.train_steps == 3


@pytest.mark.parametrize("written", [100, "3 epochs"])
def test_the_length_of_a_run_given_twice_is_refused_with_both_keys(written):
  (problem,) = checks.problems(config(train_steps=written, train_epochs=2.5))
  assert problem.path == "trainer.train_epochs"
  assert f"is given (2.5), and so is trainer.train_steps ({written!r}). Give one of them." in problem.message
  assert "'trainer.train_steps=2.5 epochs'" in problem.message


# ---- What is refused -------------------------------------------------------------------------------------------------


def problems(num_examples=never, **trainer):
  with pytest.raises(ConfigError) as refused:
    resolved(num_examples, **trainer)
  return {problem.path: problem.message for problem in refused.value.problems}


def test_epochs_of_data_of_unknown_size_are_refused_with_what_to_give():
  found = problems(unknown, train_steps="3 epochs", validation_interval="1 epoch")
  assert list(found) == ["trainer.train_steps", "trainer.validation_interval"]
  assert found["trainer.train_steps"] == (
    "'3 epochs' needs the number of examples, which is not known.\n"
    "Give steps here, or set task.train_data.num_examples."
  )


def test_all_that_stands_for_no_step_is_refused_together():
  found = problems(
    lambda: 2, train_steps="1 epoch", steps_per_loop="0.1%", validation_interval="3 examples", recovery_begin_steps="0%"
  )
  assert found == {
    "trainer.train_steps": "'1 epoch' is less than one step (2 examples, batch 4).",
    "trainer.validation_interval": "'3 examples' is less than one step (batch 4).",
  }
  assert problems(steps_per_loop="0.1%", recovery_begin_steps="0%") == {
    "trainer.steps_per_loop": "'0.1%' is less than one step (of 100 steps)."
  }
  assert problems(checkpoints_at=["0 steps"]) == {"trainer.checkpoints_at.0": "'0 steps' must be at least 1 step."}


def test_a_percentage_of_a_run_without_length_is_refused():
  message = "'5%' is a percentage of trainer.train_steps, which is 0. Set that, or give steps here."
  assert problems(train_steps=0, validation_interval="5%") == {"trainer.validation_interval": message}


def test_examples_without_a_batch_size_are_refused():
  given = ExperimentConfig(trainer=TrainerConfig(train_steps="8 examples"))
  with pytest.raises(ConfigError, match="'8 examples' needs task.train_data.global_batch_size, which is 0"):
    steps.resolve(given, never)


# ---- Before TensorFlow is there --------------------------------------------------------------------------------------


def test_what_needs_no_data_is_compared_early_and_the_rest_waits():
  late = {"checkpoints_at": ["120%"], "recovery_begin_steps": "300 examples"}
  assert [problem.path for problem in checks.problems(config(**late), "train")] == [
    "trainer.checkpoints_at",
    "trainer.optimizer_config.optimizer.type",
    "trainer.optimizer_config.learning_rate.type",
  ]
  waiting = config(train_steps="1 epoch", checkpoints_at=[5], best_checkpoint_eval_metric="a")
  assert [problem.path for problem in checks.problems(waiting)] == ["trainer.best_checkpoint_export_subdir"]
  now, _ = steps.resolve(waiting, lambda: 10)
  assert [problem.path for problem in checks.problems(now)] == [
    "trainer.checkpoints_at",
    "trainer.best_checkpoint_export_subdir",
  ]


def test_a_run_is_not_built_from_durations_that_nobody_resolved():
  with pytest.raises(ConfigError) as refused:
    steps.require_steps(TrainerConfig(train_epochs=2, validation_interval="5%"), "trainer")
  assert [problem.path for problem in refused.value.problems] == ["trainer.train_steps", "trainer.validation_interval"]
  assert "still is '2 epochs', where a run needs a number of steps." in str(refused.value)
  steps.require_steps(TrainerConfig(), "trainer")
  steps.require_steps(OptimizationConfig(), "trainer.optimizer_config")


def test_the_data_configs_of_users_keep_their_class():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class MyData(DataConfig):
    first: Steps = setting(0, "First.")

  given = dataclasses.replace(config(), task=TaskConfig(train_data=MyData(global_batch_size=4, first="50%")))
  assert steps.resolve(given, never)[0].task.train_data == MyData(global_batch_size=4, first=50)
