import types

import pytest
import tensorflow as tf

from official_trainer.config.trainer import TrainerConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError
from official_trainer.requirements import require_asynchronous, require_parts, require_whole
from tests import small_tasks


def test_what_workers_for_themselves_cannot_do_is_refused_all_at_once():
  trainer = TrainerConfig(exact_resume=True, skip_nonfinite_updates=True, train_tf_while_loop=False)
  with pytest.raises(ConfigError) as raised:
    require_asynchronous(types.SimpleNamespace(num_replicas_in_sync=2), trainer, RuntimeConfig(enable_xla=True))
  assert [problem.path for problem in raised.value.problems] == [
    "trainer.exact_resume",
    "trainer.skip_nonfinite_updates",
    "trainer.train_tf_while_loop",
    "runtime.enable_xla",
    "runtime.num_gpus",
  ]
  assert "trainer.serial_closures=true" in str(raised.value)


def test_one_worker_at_a_time_resumes_exactly():
  trainer = TrainerConfig(exact_resume=True, serial_closures=True)
  require_asynchronous(types.SimpleNamespace(num_replicas_in_sync=1), trainer, RuntimeConfig())


def test_missing_parts_of_a_config_are_named():
  with pytest.raises(AttributeError, match="must have the attribute `trainer`"):
    require_parts(types.SimpleNamespace(), False, False)
  config = types.SimpleNamespace(trainer=None, task=types.SimpleNamespace(train_data=1))
  with pytest.raises(AttributeError, match="`task.validation_data`, or a dataset"):
    require_parts(config, True, True)


def test_m12_data_that_are_supplied_need_not_be_in_the_config():
  require_parts(types.SimpleNamespace(trainer=None, task=types.SimpleNamespace()), False, False)


def test_more_validation_steps_than_batches_are_refused_and_reported_with_the_other_input(tmp_path):
  config = small_tasks.experiment(validation_steps=4, train_data={"input_path": "nowhere"})
  with pytest.raises(ConfigError) as raised:
    small_tasks.build_trainer(config)
  assert [problem.path for problem in raised.value.problems] == [
    "task.train_data.input_path",
    "trainer.validation_steps",
  ]
  assert "asks for 4 batches, but task.validation_data has 3. Use -1" in str(raised.value)
  small_tasks.build_trainer(small_tasks.experiment(validation_steps=3))


def test_an_evaluation_that_was_cut_short_is_no_result():
  three = tf.data.Dataset.range(3)
  require_whole(3, three)
  require_whole(2, None)
  require_whole(2, three.filter(lambda number: number < 2))  # Their number is not known.
  with pytest.raises(RuntimeError, match="ended after 2 of 3 batches"):
    require_whole(2, three)
  with pytest.raises(ValueError, match="the evaluation set is empty"):
    require_whole(0, three)


def test_a_full_disk_inside_an_evaluation_step_does_not_pass_for_the_end_of_the_data():
  class Writing(small_tasks.Regression):
    batches = 0

    def aggregate_logs(self, state, step_outputs):
      self.batches += 1
      if self.batches == 2:
        raise tf.errors.OutOfRangeError(None, None, "predictions.txt; File too large")

  trainer = small_tasks.build_trainer(task=Writing)
  with pytest.raises(RuntimeError, match="ended after 2 of 3 batches"):
    small_tasks.evaluate(trainer)


def test_the_evaluation_data_are_made_once_at_the_start():
  made = []

  class Counting(small_tasks.PipelineRegression):
    def build_inputs(self, params, input_context=None):
      made.append(params.is_training)
      return super().build_inputs(params, input_context)

  small_tasks.build_trainer(small_tasks.experiment(validation_steps=3), task=Counting)
  assert made.count(False) == 1
