import types

import pytest
import tensorflow as tf

from official_trainer.errors import ConfigError
from official_trainer.requirements import require_parts, require_supported
from tests import small_tasks


def test_parameter_servers_are_refused():
  class Server(tf.distribute.experimental.ParameterServerStrategy):
    def __init__(self):
      pass

  with pytest.raises(ConfigError, match="parameter servers are not supported yet"):
    require_supported(Server())


def test_any_other_strategy_is_returned():
  strategy = tf.distribute.get_strategy()
  assert require_supported(strategy) is strategy


def test_missing_parts_of_a_config_are_named():
  with pytest.raises(AttributeError, match="must have the attribute `trainer`"):
    require_parts(types.SimpleNamespace(), False, False)
  config = types.SimpleNamespace(trainer=None, task=types.SimpleNamespace(train_data=1))
  with pytest.raises(AttributeError, match="`task.validation_data`, or a dataset"):
    require_parts(config, True, True)


def test_data_that_are_supplied_need_not_be_in_the_config():
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
