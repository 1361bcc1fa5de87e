import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config.loading import load
from official_trainer.run import session as session_module
from official_trainer.testing import FaultDidNotHappen, ResumeNotExact, assert_resumes_exactly
from tests import tiny


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


def check(folder, *overrides, task=None, **kwargs):
  texts = [*overrides, *([f"task.task_class=tests.testing.test_resume:{task}"] if task else [])]
  assert_resumes_exactly("tiny", folder, modules=["tests.tiny"], overrides=texts, **kwargs)


class NoSeed(tiny.TinyTask):
  """A pipeline that shuffles anew in each process."""

  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices(tiny.examples())
    if params.is_training:
      order = np.random.default_rng().permutation(tiny.NUM_EXAMPLES)
      dataset = tf.data.Dataset.from_tensor_slices(tuple(part[order] for part in tiny.examples())).repeat()
    return dataset.batch(params.global_batch_size)


class InPython(tiny.TinyTask):
  """Makes the first three batches after each start weigh less."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.count = 0

  def train_step(self, inputs, **kwargs):
    def count():
      self.count += 1
      return np.float32(min(self.count, 3))

    features, labels = inputs
    weight = tf.ensure_shape(tf.numpy_function(count, [], tf.float32), [])
    return super().train_step((features * weight, labels), **kwargs)


@pytest.mark.slow
def test_a_task_with_everything_resumes_exactly(tmp_path):
  check(
    tmp_path,
    "trainer.best_checkpoint_export_subdir=best_ckpt,trainer.best_checkpoint_eval_metric=accuracy",
    "task.dropout=0.5,task.batchnorm=true,trainer.optimizer_config.ema={average_decay: 0.9},trainer.steps_per_loop=3",
    crash_steps=(4,),
  )
  assert tiny.committed(tmp_path / "crashed")[-1] == tiny.committed(tmp_path / "uninterrupted")[-1] == 6


def test_state_in_python_is_found(tmp_path):
  with pytest.raises(ResumeNotExact, match="state in Python") as error:
    check(tmp_path, "runtime.seed=3", task="InPython", crash_steps=(5,))
  text = str(error.value)
  assert isinstance(error.value, AssertionError)
  assert text.startswith("a run that crashed at step 5 is not the run that did not:\n  - history.jsonl: from line ")
  assert any(line.startswith("ckpt-6: model/") for line in error.value.differences)
  assert "computed from the step (exact)" in text
  assert "two runs of this task are not equal" not in text


def test_data_that_come_in_another_order_each_time_are_found(tmp_path):
  with pytest.raises(ResumeNotExact, match="differ at step 2 already, before anything was resumed") as error:
    check(tmp_path, "runtime.seed=3", task="NoSeed")
  assert "crashed at steps 3, 5" in str(error.value)
  assert "the data: input position: the pipeline is skipped forward on resume" in str(error.value)


def test_a_loaded_config_is_taken_as_it_is(tmp_path):
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override="trainer.train_steps=3")
  assert_resumes_exactly(loaded, tmp_path, crash_steps=[2], mode="train")
  with pytest.raises(ValueError, match="`overrides` and `modules` go with an experiment's name"):
    assert_resumes_exactly(loaded, tmp_path, overrides="trainer.train_steps=4")


def test_a_run_too_short_to_crash_is_an_error(tmp_path):
  with pytest.raises(FaultDidNotHappen, match=r"crash_at\(5\) did not happen"):
    check(tmp_path, "trainer.train_steps=5", mode="train", crash_steps=[3, 5])


@pytest.mark.parametrize("steps", [(), (5, 3), (3, 3)])
def test_crashes_that_do_not_ascend_are_refused(tmp_path, steps):
  with pytest.raises(ValueError, match="`crash_steps` must be ascending"):
    check(tmp_path, crash_steps=steps)


def test_a_folder_with_runs_in_it_is_refused(tmp_path):
  (tmp_path / "crashed").mkdir()
  with pytest.raises(ValueError, match="crashed is there already; give an empty folder"):
    check(tmp_path)
