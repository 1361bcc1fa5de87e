import pytest

from official_trainer.config import base, checks
from official_trainer.config.experiment import ExperimentConfig


def found(trainer, **runtime):
  config = base.from_dict(ExperimentConfig, {"trainer": {"train_steps": 100, **trainer}, "runtime": runtime})
  return [str(problem) for problem in checks.problems(config)]


@pytest.mark.parametrize(
  "trainer", [{}, {"profile": {"steps": [0, 100]}}, {"dump_graphs": "all", "inspect_model": True}]
)
def test_what_can_be_looked_at_is_let_pass(trainer):
  assert found(trainer) == []


@pytest.mark.parametrize(
  ("steps", "message"),
  [
    ([5, 5], "trainer.profile.steps: needs first < end, got [5, 5]."),
    ([90, 101], "trainer.profile.steps: must end by trainer.train_steps (100), got [90, 101]."),
  ],
)
def test_a_window_must_hold_steps_of_the_run(steps, message):
  assert found({"profile": {"steps": steps}}) == [message]


@pytest.mark.parametrize(("name", "value"), [("dump_graphs", "text"), ("inspect_model", True)])
def test_steps_of_parameter_servers_workers_cannot_be_looked_at(name, value):
  (problem,) = found({name: value}, distribution_strategy="parameter_server")
  assert problem.startswith(f"trainer.{name}: has no effect under 'parameter_server'")


def test_graphs_that_are_not_written_cannot_be_compressed():
  (problem,) = found({"compress_graphs": True})
  assert problem.startswith("trainer.compress_graphs: has no effect: no graphs are written. Set trainer.dump_graphs")
  assert found({"compress_graphs": True, "dump_graphs": "text"}) == []
