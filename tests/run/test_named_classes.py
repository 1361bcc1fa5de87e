import pytest
import tf_keras

from official_trainer.errors import ConfigError
from official_trainer.run.named_classes import require_keras_model, resolve_task_class, resolve_trainer_class
from official_trainer.trainer import Trainer
from tests import tiny


class MyTrainer(Trainer):
  """A trainer of the user's own."""


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("", "must be 'module:Class', got ''"),
    ("tests.tiny", "must be 'module:Class', got 'tests.tiny'"),
    ("tests.tiny:Nothing", "'tests.tiny:Nothing' cannot be imported: .*no attribute 'Nothing'"),
    ("tests.nowhere:Task", "tests.nowhere"),
  ],
)
def test_a_task_class_that_is_not_there_is_an_error(name, text):
  with pytest.raises(ConfigError, match=text):
    resolve_task_class(name)


def test_a_task_class_is_imported_by_its_name():
  assert resolve_task_class("tests.tiny:TinyTask") is tiny.TinyTask


def test_a_model_of_the_other_keras_is_refused_with_what_to_import():
  class Foreign:
    pass

  Foreign.__module__ = "keras.src.models.model"
  task = tiny.TinyTask(None)
  with pytest.raises(ConfigError, match="got keras.src.models.model.*`import tf_keras`"):
    require_keras_model(Foreign(), task)
  with pytest.raises(ConfigError, match=r"TinyTask\.build_model\(\) must return a tf_keras\.Model"):
    require_keras_model(None, task)
  model = tf_keras.Sequential()
  assert require_keras_model(model, task) is model


def test_a_trainer_class_is_imported_by_its_name():
  assert resolve_trainer_class("tests.run.test_named_classes:MyTrainer").__name__ == "MyTrainer"


@pytest.mark.parametrize(
  ("name", "text"),
  [
    (
      "tests.tiny:TinyTask",
      "trainer.trainer_class: must be a subclass of official_trainer.Trainer, got 'tests.tiny:TinyTask'",
    ),
    ("tests.tiny:experiment_config", "must be a subclass of official_trainer.Trainer"),
    ("tests.tiny:Nothing", "trainer.trainer_class: 'tests.tiny:Nothing' cannot be imported"),
  ],
)
def test_a_trainer_class_that_is_none_is_an_error(name, text):
  with pytest.raises(ConfigError, match=text):
    resolve_trainer_class(name)
