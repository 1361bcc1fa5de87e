"""What a run reports, and where: one run of six steps, looked at from all sides."""

import contextlib
import io
import json

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.util import tensor_util

from official_trainer.config.loading import load
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from tests import tiny

pytestmark = pytest.mark.usefixtures("logical_cpus")

RATE = 0.1  # That of the experiment.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The folder of a run, and what it said."""
  folder = tmp_path_factory.mktemp("reports") / "run"
  settings = "trainer.first_loop_steps=1,trainer.steps_per_loop=3,trainer.validation_interval=6"
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=settings, mode="train_and_eval")
  said = io.StringIO()
  with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
    patch.setattr(session_module, "plot_history", lambda *args: None)
    Runner(loaded, mode="train_and_eval", model_dir=str(folder)).run()
  return folder, said.getvalue()


@pytest.fixture(scope="module")
def curves(finished):
  reader = plugin_event_accumulator.EventAccumulator(str(finished[0] / "train"))
  reader.Reload()
  return reader


def test_t20_the_learning_rate_is_there_at_step_1_and_at_every_report(finished, curves):
  points = {
    event.step: tensor_util.make_ndarray(event.tensor_proto).item() for event in curves.Tensors("learning_rate")
  }
  assert points == pytest.approx({1: RATE, 3: RATE, 6: RATE})
  rows = map(json.loads, (finished[0] / "history.jsonl").read_text("utf-8").splitlines())
  assert {row["step"]: row["metrics"]["learning_rate"] for row in rows if row["mode"] == "train"} == points


def test_t47_the_config_is_shown_from_the_start_on(finished, curves):
  (event,) = curves.Tensors("config")
  assert event.step == 0
  shown = tensor_util.make_ndarray(event.tensor_proto).item().decode()
  written = (finished[0] / "params.yaml").read_text("utf-8")
  assert [line.removeprefix("    ") for line in shown.splitlines()] == written.splitlines()


def test_t27_the_run_says_what_a_replica_gets(finished):
  assert "batches of 4 examples: all on one replica: float32 [4, 3], int32 [4]\n" in finished[1]


def test_t56_how_long_saving_held_up_the_run_is_told(finished):
  folder, said = finished
  (leg,) = json.loads((folder / "time.json").read_text("utf-8"))["legs"]
  assert leg["secs"]["save"] > 0
  assert "time: " in said


def test_d48_actions_come_after_every_inner_loop_and_every_evaluation_with_their_step(tmp_path):
  events = []
  actions = {"train_actions": [events.append], "eval_actions": [events.append]}
  tiny.build(tmp_path, train_steps=4, steps_per_loop=1, session=actions).run()
  assert [(event.step, event.mode) for event in events] == [
    (1, "train"),
    (2, "train"),
    (2, "validation"),
    (3, "train"),
    (4, "train"),
    (4, "validation"),
  ]
  assert all("training_loss" in event.output for event in events if event.mode == "train")
