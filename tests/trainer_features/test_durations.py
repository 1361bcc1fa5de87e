"""Lengths in steps, epochs, examples and percent, from the command line to the last checkpoint."""

import dataclasses
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.loading import load
from official_trainer.errors import ConfigError
from official_trainer.optim.config import LinearWarmupConfig, WarmupConfig
from official_trainer.run import session as session_module
from official_trainer.run_record import load_record
from official_trainer.runner import Runner
from official_trainer.testing.fault import SimulatedCrash
from official_trainer.testing.faults import crash_at
from official_trainer.trainer import Trainer
from tests import tiny

# 20 examples in batches of 6, which do not divide them: 10 steps, a report, an evaluation and a checkpoint every 3.
BATCH = "task.train_data.global_batch_size=6"
IN_STEPS = {
  "trainer.train_steps": "10",
  "trainer.steps_per_loop": "3",
  "trainer.validation_interval": "3",
  "trainer.checkpoint_interval": "5",
  "trainer.checkpoints_at": "[7]",
  "trainer.optimizer_config.ema.start_step": "4",
  "trainer.optimizer_config.warmup.type": "linear",
  "trainer.optimizer_config.warmup.linear.warmup_steps": "2",
  "trainer.validation_steps": "2",
}
IN_WORDS = {
  "trainer.train_steps": "3 epochs",
  "trainer.steps_per_loop": "20 examples",
  "trainer.validation_interval": "1 epoch",
  "trainer.checkpoint_interval": "50%",
  "trainer.checkpoints_at": "[45 examples]",
  "trainer.optimizer_config.ema.start_step": "1.25 epochs",
  "trainer.optimizer_config.warmup": "20%",
  "trainer.validation_steps": "9 examples",
}
WARMUP = WarmupConfig(type="linear", linear=LinearWarmupConfig(warmup_steps="5%"))


class Drawing(tiny.TinyTask):
  """Draws random numbers of every kind wherever it is asked for anything."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.draw()

  def build_source(self, params):
    self.draw()
    return super().build_source(params)

  def build_model(self):
    model = super().build_model()
    kernel = model.trainable_variables[0]
    kernel.assign_add(tf.fill(kernel.shape, self.draw()))
    return model

  def draw(self):
    return random.random() + np.random.rand() + tf.random.uniform(())


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


def loaded(settings, **kwargs):
  text = ",".join([BATCH, "runtime.seed=3", *(f"{key}={value}" for key, value in settings.items())])
  return load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=text, **kwargs)


def run(folder, settings, mode="train_and_eval", **kwargs):
  return Runner(loaded(settings, mode=mode), mode=mode, model_dir=str(folder), **kwargs).run()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """The folders of two runs, and what the second one said: one config in steps, the same in words."""
  folder = tmp_path_factory.mktemp("both")
  more = {
    "task.task_class": "tests.trainer_features.test_durations:Drawing",
    "task.hidden": "[4]",
    "task.dropout": "0.5",
  }
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    run(folder / "steps", {**IN_STEPS, **more}, quiet=True)
    run(folder / "words", {**IN_WORDS, **more}, quiet=True)
  return folder / "steps", folder / "words"


def test_d23_a_run_written_in_words_is_the_run_written_in_steps_bit_for_bit(both):
  steps, words = both
  assert tiny.committed(words) == tiny.committed(steps) == [0, 5, 7, 10]
  for step in (0, 5, 7, 10):
    tiny.assert_same_contents(steps / f"ckpt-{step}", words / f"ckpt-{step}")
  assert (words / "history.jsonl").read_bytes() == (steps / "history.jsonl").read_bytes()


def test_a_run_records_what_the_user_wrote_and_how_many_examples_it_counted(both):
  steps, words = both
  params = (words / "params.yaml").read_text("utf-8")
  assert "train_steps: 3 epochs" in params and "warmup_steps: 20%" in params
  assert load_record(str(words)).num_examples == 20
  assert load_record(str(steps)).num_examples is None


def test_d28_steps_and_epochs_are_both_said_whichever_was_written(tmp_path, capsys):
  run(tmp_path / "a", {"trainer.train_steps": "1.5 epochs"}, mode="train")
  assert "trainer.train_steps: 1.5 epochs = 5 steps (20 examples, batch 6)" in capsys.readouterr().err
  run(tmp_path / "b", {"trainer.train_steps": "5"}, mode="train")
  assert "trainer.train_steps: 5 steps = 1.5 epochs (20 examples, batch 6)" in capsys.readouterr().err


def test_d37_an_epoch_is_whole_batches_in_training_and_every_example_in_evaluation(tmp_path):
  settings = {"trainer.train_steps": "1 epoch", "trainer.validation_steps": "1 epoch"}
  result = run(tmp_path, settings, quiet=True)
  assert result.step == 3  # 20 examples in batches of 6: the stream has 2 left for the next epoch.
  whole = run(tmp_path / "whole", {"trainer.train_steps": "3", "trainer.validation_steps": "-1"}, quiet=True)
  assert result.metrics == whole.metrics  # Four batches, the last one of two examples.


def test_d45_the_cadences_in_use_are_said_with_their_source(tmp_path, capsys):
  overrides = "task.task_class=tests.tiny:TinyTask,trainer.validation_interval=1 epoch,trainer.train_steps=2"
  found = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=overrides)
  Runner(found, mode="train_and_eval", model_dir=str(tmp_path)).run()
  line = "steps between two: reports every 2 (experiment), evaluations every 5 (--params_override), checkpoints every 2"
  assert line in capsys.readouterr().err


# ---- Restarts --------------------------------------------------------------------------------------------------------


def test_a_run_keeps_the_size_that_it_counted_first_and_says_when_the_data_have_another(tmp_path, capsys, monkeypatch):
  settings = {"trainer.train_steps": "3 epochs", "task.task_class": "tests.tiny:LongTask"}
  monkeypatch.setattr(tiny.LongTask, "num_examples", 20)
  with pytest.raises(SimulatedCrash), crash_at(6):
    run(tmp_path, settings, mode="train")
  monkeypatch.setattr(tiny.LongTask, "num_examples", 40)
  capsys.readouterr()
  assert run(tmp_path, settings, mode="train").step == 10
  assert "the training data have 40 examples, but epochs are counted with 20, as there were when the run began." in (
    capsys.readouterr().err
  )


def test_other_words_for_the_same_length_are_another_config(tmp_path):
  run(tmp_path, {"trainer.train_steps": "1 epoch"}, mode="train", quiet=True)
  with pytest.raises(ConfigError, match="trainer.train_steps: was 1 epoch when this run started, now 3"):
    run(tmp_path, {"trainer.train_steps": "3"}, mode="train")


# ---- What is refused -------------------------------------------------------------------------------------------------


def test_numbers_that_do_not_fit_are_refused_once_the_data_are_known_and_nothing_is_written(tmp_path):
  settings = {
    "trainer.train_steps": "1 epoch",
    "trainer.checkpoints_at": "[2, 4]",
    "trainer.recovery_begin_steps": "2 epochs",
  }
  with pytest.raises(ConfigError) as refused:
    run(tmp_path, settings)
  text = str(refused.value)
  assert (
    "trainer.checkpoints_at: must not be after trainer.train_steps (3), got [4].   (from --params_override)" in text
  )
  assert "trainer.recovery_begin_steps: must not be after trainer.train_steps (3), got 6." in text
  assert not list(tmp_path.iterdir())


def test_epochs_of_data_without_a_known_size_are_refused_and_a_size_that_is_given_counts(tmp_path):
  settings = {"trainer.train_steps": "1.5 epochs", "task.task_class": "tests.run.test_data_size:Repeating"}
  with pytest.raises(ConfigError, match="Give steps here, or set task.train_data.num_examples"):
    run(tmp_path, settings)
  assert run(tmp_path, {**settings, "task.train_data.num_examples": "8"}, mode="train", quiet=True).step == 2


def test_two_lengths_and_words_that_mean_nothing_are_refused_together_before_tensorflow_is_imported():
  code = (
    "import sys; from absl import flags; from official_trainer import train;"
    "code = train.main(sys.argv, flags.FlagValues()); assert 'tensorflow' not in sys.modules; sys.exit(code)"
  )
  wrong = "trainer.train_epochs=3,trainer.validation_interval=2 parsecs,trainer.checkpoint_interval=0.01%"
  arguments = ["--experiment=digits/cnn", "--mode=train", "--model_dir=x", f"--params_override={wrong}"]
  done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
  assert done.returncode == 2, done.stderr
  assert "trainer.train_epochs: is given (3), and so is trainer.train_steps (1000). Give one of them." in done.stderr
  assert "trainer.validation_interval: must be a number of steps, '90 epochs', '1.2M examples' or '5%'" in done.stderr


def test_a_trainer_is_not_built_from_a_config_that_nobody_resolved():
  config = tiny.experiment_config(validation_interval="1 epoch")
  with pytest.raises(ConfigError, match="trainer.validation_interval: still is '1 epoch'"):
    Trainer(config, tiny.TinyTask(config.task), None, None)
  optimizer = dataclasses.replace(config.trainer.optimizer_config, warmup=WARMUP)
  with pytest.raises(ConfigError, match="trainer.optimizer_config.warmup.linear.warmup_steps: still is '5%'"):
    tiny.TinyTask.create_optimizer(optimizer)


# ---- Other modes -----------------------------------------------------------------------------------------------------


def test_an_evaluation_and_a_replay_of_a_run_take_its_size_from_its_record(both, monkeypatch):
  _, words = both
  monkeypatch.setattr(Drawing, "count_examples", None)  # Nobody may ask.
  settings = {**IN_WORDS, "task.task_class": "tests.trainer_features.test_durations:Drawing", "task.hidden": "[4]"}
  settings = {**settings, "task.dropout": "0.5", "trainer.validation_steps": "2"}
  evaluated = Runner(loaded(settings), mode="eval", model_dir=str(words), quiet=True).run()
  rows = [json.loads(line) for line in (words / "history.jsonl").read_text("utf-8").splitlines()]
  (last,) = [row["metrics"] for row in rows if (row["step"], row["mode"]) == (10, "validation")]
  assert evaluated.metrics == last  # Averaged since step 4, as in training.
  settings["trainer.validation_steps"] = "9 examples"
  assert Runner(loaded(settings), mode="replay", model_dir=str(words), quiet=True).replay(7).step == 7


def test_a_check_for_a_tpu_counts_for_itself(tmp_path):
  report = Runner(loaded({"trainer.train_steps": "1 epoch"}), mode="check_tpu", model_dir="").check_tpu()
  assert report.is_clean, str(report)
