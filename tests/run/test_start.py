import dataclasses
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint.manifest import BrokenCheckpoint
from official_trainer.errors import CheckpointMismatch, ConfigError, TrainingDiverged
from official_trainer.optim.config import EmaConfig, OptimizerConfig, ParamGroupConfig
from official_trainer.run.start import Start
from tests import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run of six steps with its best weights."""
  folder = tmp_path_factory.mktemp("finished")
  tiny.build(
    folder,
    task={"hidden": (3,)},
    best_checkpoint_export_subdir="best_ckpt",
    best_checkpoint_eval_metric="accuracy",
  ).run()
  return folder


class Said:
  """A trainer in a folder, its start, and what that said."""

  def __init__(self, folder, *, mode="train_and_eval", task=None, checkpoint=None, **settings):
    task = {"hidden": (3,)} if task is None else task
    self.built = tiny.build(folder, mode=mode, task=task, **settings)
    self.state = self.built.state
    self.notes, self.warnings = [], []
    self.start = Start(
      self.built.trainer,
      self.built.session.store,
      self.built.session._finite.non_finite_names,
      checkpoint=None if checkpoint is None else str(checkpoint),
      note=self.notes.append,
      warn=self.warnings.append,
    )

  def resume(self):
    with self.built.trainer.strategy.scope():
      return self.start.resume_or_initialise()


def kernel(state):
  return state.model.layers[-1].kernel.numpy()


def saved_kernel(prefix):
  return tiny.contents(prefix)["model/layer_with_weights-1/kernel/.ATTRIBUTES/VARIABLE_VALUE"]


def test_an_empty_folder_starts_with_the_tasks_own_weights(tmp_path):
  said = Said(tmp_path)
  initialised = []
  said.built.trainer.initialize = lambda: initialised.append(1)
  assert said.resume() is False
  assert initialised == [1] and said.state.step == 0
  assert said.warnings == []


def test_a_run_is_resumed_with_everything_and_without_initialising(finished):
  said = Said(finished)
  said.built.trainer.initialize = lambda: pytest.fail("initialised a resumed run")
  assert said.resume() is True
  assert said.state.step == 6
  assert len(said.state.host.history) == 5  # The last evaluation comes after the last save.
  np.testing.assert_array_equal(kernel(said.state), saved_kernel(finished / "ckpt-6"))
  assert re.match(r"resumed at step 6", said.notes[0], re.IGNORECASE)


@pytest.mark.parametrize(
  "task", [{"hidden": (4,)}, {"hidden": (3, 3)}, {"hidden": ()}, {"hidden": (3,), "batchnorm": True}]
)
def test_a_folder_of_another_model_is_refused_with_the_names(finished, task):
  with pytest.raises(CheckpointMismatch, match="(shapes differ|not in the model|not in the ch)"):
    Said(finished, task=task).resume()
  assert tiny.committed(finished)[-1] == 6


def test_a_folder_with_averages_is_not_resumed_without_them_or_the_other_way_round(finished, tmp_path):
  with pytest.raises(CheckpointMismatch, match=r"- ema/0 \[3, 3\]"):
    Said(finished, ema=EmaConfig()).resume()
  tiny.build(tmp_path, train_steps=2, task={"hidden": (3,)}, ema=EmaConfig()).run()
  with pytest.raises(CheckpointMismatch, match=r"\+ ema/0 \[3, 3\]"):
    Said(tmp_path).resume()


# ---- --checkpoint -----------------------------------------------------------------------------------


def test_a_fresh_run_goes_on_from_a_given_state(finished, tmp_path):
  said = Said(tmp_path, checkpoint=finished / "ckpt-4")
  assert said.resume() is False
  assert said.state.step == 4
  assert said.state.host.history.last("train").step == 4
  np.testing.assert_array_equal(kernel(said.state), saved_kernel(finished / "ckpt-4"))
  assert said.state.host.best == {}  # Those weights are in the other folder.


def test_a_fresh_run_from_weights_alone_begins_at_step_zero(finished, tmp_path):
  said = Said(tmp_path, checkpoint=finished / "best_ckpt", ema=EmaConfig())
  assert said.resume() is False
  assert said.state.step == 0
  assert len(said.state.host.history) == 0
  expected = tiny.contents(tf.train.latest_checkpoint(str(finished / "best_ckpt")))
  np.testing.assert_array_equal(
    kernel(said.state), expected["model/layer_with_weights-1/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
  )
  for average, weight in zip(said.state.ema.averages, said.state.model.variables, strict=True):
    np.testing.assert_array_equal(average.numpy(), weight.numpy())


def test_a_run_of_the_folder_comes_before_a_given_checkpoint(finished):
  said = Said(finished, checkpoint=finished / "ckpt-2")
  assert said.resume() is True
  assert said.state.step == 6


@pytest.mark.parametrize("name", ["nowhere", "ckpt-99", ""])
def test_a_given_checkpoint_that_is_not_there_is_an_error(tmp_path, name):
  with pytest.raises(ConfigError, match=r"--checkpoint: there is no checkpoint at .*Train first"):
    Said(tmp_path, checkpoint=tmp_path / name).resume()


def test_a_given_checkpoint_that_is_broken_is_an_error(finished, tmp_path):
  for name in tiny.files_of(finished, 2):
    content = (finished / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] if "data" in name else content)
  with pytest.raises(BrokenCheckpoint, match=r"ckpt-2\.data.* bytes; the manifest says"):
    Said(tmp_path / "run", checkpoint=tmp_path / "ckpt-2").resume()


# ---- Checkpoints of other programs ------------------------------------------------------------------


def write_foreign(folder, *, value=0.5, step=100, task=None, **more):
  """Writes what a program without manifests leaves: global_step and model."""
  model = tiny.build("unused", mode="eval", task=task or {"hidden": (3,)}).trainer.model
  for variable in model.variables:
    variable.assign(tf.fill(variable.shape, value))
  checkpoint = tf.train.Checkpoint(model=model, global_step=tf.Variable(step, dtype=tf.int64), **more)
  return tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=None).save(step)


def test_a_folder_of_another_program_is_used_with_a_warning(tmp_path):
  prefix = write_foreign(tmp_path)
  said = Said(tmp_path, ema=EmaConfig())
  assert said.resume() is False
  assert said.state.step == 100
  assert (kernel(said.state) == 0.5).all()
  assert all((average.numpy() == 0.5).all() for average in said.state.ema.averages)
  assert said.warnings == [f"{prefix} has no manifest: another program wrote it. Its weights and its step are used."]


def test_what_else_another_program_saved_may_stay_unused(tmp_path):
  write_foreign(tmp_path, scheduler=tf.Variable([1.0, 2.0]))
  assert Said(tmp_path).resume() is False


def test_another_programs_checkpoint_of_another_model_is_refused(tmp_path):
  write_foreign(tmp_path, task={"hidden": (3, 3)})
  with pytest.raises(CheckpointMismatch, match=r"\+ model/layer_with_weights-2/kernel \[3, 2\]"):
    Said(tmp_path).resume()


def test_another_programs_checkpoint_without_our_weights_does_not_pass_for_pretrained(tmp_path):
  checkpoint = tf.train.Checkpoint(net=tf.Variable(1.0), global_step=tf.Variable(5, dtype=tf.int64))
  tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=None).save(5)
  with pytest.raises(CheckpointMismatch, match=r"- model/layer_with_weights-0/kernel \[3, 3\]"):
    Said(tmp_path).resume()


def test_another_programs_checkpoint_that_is_not_finite_is_refused(tmp_path):
  write_foreign(tmp_path, value=np.nan)
  with pytest.raises(TrainingDiverged, match="not finite before the first step: dense"):
    Said(tmp_path).resume()


def test_another_programs_checkpoint_is_found_without_its_state_file(tmp_path):
  write_foreign(tmp_path)
  (tmp_path / "checkpoint").unlink()
  said = Said(tmp_path)
  said.resume()
  assert said.state.step == 100


def test_another_programs_checkpoint_given_by_path_brings_weights_but_not_its_step(tmp_path):
  write_foreign(tmp_path / "theirs")
  said = Said(tmp_path / "ours", checkpoint=tmp_path / "theirs")
  said.resume()
  assert said.state.step == 0
  assert (kernel(said.state) == 0.5).all()


# ---- For an evaluation ------------------------------------------------------------------------------


def load(said):
  with said.built.trainer.strategy.scope():
    said.start.load_for_evaluation()
  return said


def test_an_evaluation_loads_the_newest_of_the_folder(finished):
  said = load(Said(finished, mode="eval"))
  assert said.state.step == 6
  np.testing.assert_array_equal(kernel(said.state), saved_kernel(finished / "ckpt-6"))


def test_an_evaluation_loads_a_given_step_or_the_best(finished):
  assert load(Said(finished, mode="eval", checkpoint=finished / "ckpt-2")).state.step == 2
  best = load(Said(finished, mode="eval", checkpoint=finished / "best_ckpt"))
  recorded = tf.train.latest_checkpoint(str(finished / "best_ckpt"))
  assert best.state.step == int(recorded.rpartition("-")[2])


def test_an_evaluation_of_an_empty_folder_is_an_error_unless_untrained_weights_are_allowed(
  tmp_path,
):
  said = Said(tmp_path, mode="eval")
  with pytest.raises(ConfigError, match="--model_dir: there is no checkpoint"):
    load(said)
  said.start._allow_untrained = True
  load(said)
  assert said.warnings == [f"{tmp_path} holds no checkpoint: untrained weights are evaluated."]


def test_an_evaluation_of_another_model_is_refused(finished):
  with pytest.raises(CheckpointMismatch, match=r"\+ model/layer_with_weights-1"):
    load(Said(finished, mode="eval", task={"hidden": ()}))


def test_an_evaluation_needs_no_optimizers_of_groups(tmp_path):
  own = OptimizerConfig(type="sgd")
  optimization = tiny.trainer_config().optimizer_config
  groups = (ParamGroupConfig(pattern="bias", optimizer=own),)
  settings = {"optimizer_config": dataclasses.replace(optimization, param_groups=groups)}
  tiny.build(tmp_path, mode="train", train_steps=2, **settings).run()
  assert tiny.build(tmp_path, mode="eval", **settings).run().step == 2


def test_a_state_that_is_not_finite_does_not_start(tmp_path):
  said = Said(tmp_path)
  said.state.model.layers[-1].kernel.assign(tf.fill([3, 2], np.inf))
  with pytest.raises(TrainingDiverged, match="1 variables are not finite before the first step"):
    said.start.require_finite()


def test_nothing_is_logged_twice(finished, caplog):
  with caplog.at_level(logging.WARNING):
    Said(finished).resume()
  assert caplog.text == ""
