import pytest
import tensorflow as tf

from official_trainer.errors import ConfigError
from official_trainer.run.data_size import DataSize
from tests import tiny


class Repeating(tiny.FiniteTask):
  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).repeat()


class Knowing(tiny.TinyTask):
  """Knows without building anything."""

  def count_examples(self, params):
    return 100 if params.is_training else 7

  def build_source(self, params):
    raise AssertionError("nobody needs the source")


class Chief:
  is_chief = True

  def from_chief(self, value):
    self.sent = value
    return value


class Worker:
  is_chief = False

  def __init__(self, chief):
    self._chief = chief

  def from_chief(self, value):
    assert value == 0
    return self._chief.sent


def size(task_class=tiny.TinyTask, *, peers=None, recorded=None, **train_data):
  config = tiny.experiment_config(train_data=train_data).task
  return DataSize(lambda: task_class(config), config, seed=1, peers=peers, recorded=recorded)


@pytest.mark.parametrize(
  ("task_class", "train", "validation"),
  [(tiny.TinyTask, 20, 20), (tiny.LongTask, 100, 20), (Knowing, 100, 7), (Repeating, None, None)],
)
def test_the_task_is_asked_for_the_size_of_its_data(task_class, train, validation):
  asked = size(task_class)
  assert (asked.train(), asked.validation(), asked.has_counted) == (train, validation, True)
  assert asked.num_examples == train


def test_a_pipeline_that_ends_is_one_epoch():
  assert size(tiny.FiniteTask, global_batch_size=4).train() == 20
  assert size(tiny.FiniteTask, global_batch_size=6).train() == 24  # Four batches, as many as the updates it can feed.


def test_a_task_of_another_library_is_asked_for_its_pipeline():
  class Theirs:
    def __init__(self, config):
      pass

    def build_inputs(self, params):
      return tf.data.Dataset.range(12).batch(params.global_batch_size)

  assert size(Theirs, global_batch_size=3).train() == 12


def test_what_the_run_counted_at_its_first_start_counts_and_nothing_is_built():
  asked = size(Knowing, recorded=50)
  assert (asked.train(), asked.has_counted) == (50, False)


def test_the_chief_counts_and_the_others_take_its_number():
  chief = Chief()
  assert size(tiny.LongTask, peers=chief).train() == 100
  worker = size(Knowing, peers=Worker(chief), recorded=3)
  assert (worker.train(), worker.has_counted) == (100, False)
  assert size(Repeating, peers=chief).train() is None
  assert size(Knowing, peers=Worker(chief)).train() is None


def test_files_that_are_not_there_are_refused_by_name():
  with pytest.raises(ConfigError, match="task.train_data.input_path: names no file that can be read, got 'nowhere/x'"):
    size(input_path="nowhere/x").train()


def test_the_task_is_asked_with_the_seed_and_the_purpose_filled_in():
  seen = []

  class Seeing(tiny.TinyTask):
    def count_examples(self, params):
      seen.append((params.seed, params.is_training))
      return 1

  asked = size(Seeing, is_training=None)
  assert (asked.train(), asked.validation()) == (1, 1)
  assert seen == [(1, True), (1, False)]
