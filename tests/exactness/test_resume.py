"""A run that is stopped and started again ends with the bits of the run that was not (foundation F3)."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.optim.config import EmaConfig
from tests import small_tasks
from tests.exactness.test_global_batches import Recording

pytestmark = pytest.mark.usefixtures("logical_cpus")


def stopped_and_resumed(tmp_path, stops, config, **kwargs):
  """Trains to each of the stops in a fresh trainer; returns the last one and its history."""
  for stop in stops:
    shortened = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, train_steps=stop))
    trainer = small_tasks.build_trainer(shortened, **kwargs)
    small_tasks.session(trainer, tmp_path).run()
  return trainer


def everything(params):
  return small_tasks.Regression(params, layers=small_tasks.everything)


def config_of(**kwargs):
  return small_tasks.experiment(
    **{
      "batch_size": 6,
      "optimizer_config": small_tasks.optimization("adam", 0.01, ema=EmaConfig(start_step=2)),
      "validation_interval": 4,
      "steps_per_loop": 4,
      "checkpoint_interval": 3,
      **kwargs,
    }
  )


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_t34_dropout_statistics_and_averages_resume_to_the_bit(tmp_path, num_replicas):
  whole = stopped_and_resumed(tmp_path / "whole", [12], config_of(), task=everything, num_replicas=num_replicas)
  parts = stopped_and_resumed(tmp_path / "parts", [4, 8, 12], config_of(), task=everything, num_replicas=num_replicas)
  assert small_tasks.bits(parts) == small_tasks.bits(whole)
  assert parts.state.host.history.rows == whole.state.host.history.rows


class Killed(Exception):
  pass


class Mortal(small_tasks.Regression):
  """Has a metric of its own on the model, and dies after a number of evaluations."""

  evaluations_left = 10**6

  def build_model(self):
    model = super().build_model()
    model.add_metric(model.output, name="mean_output", aggregation="mean")
    return model

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {}

  def aggregate_logs(self, state, step_outputs):
    type(self).evaluations_left -= 1
    if type(self).evaluations_left < 0:
      raise Killed
    return {}


def test_an_evaluation_in_the_middle_of_a_report_does_not_change_the_report(tmp_path):
  # Metrics of the model are reset by evaluations; a report of training may span some.
  def task(params):
    return Mortal(params, layers=small_tasks.everything)

  config = config_of(steps_per_loop=10, validation_interval=2, checkpoint_interval=2, train_steps=20)
  trainer = small_tasks.build_trainer(config, task=task)
  small_tasks.session(trainer, tmp_path / "often").run()
  config = config_of(steps_per_loop=10, validation_interval=20, checkpoint_interval=20, train_steps=20)
  seldom = small_tasks.build_trainer(config, task=task)
  small_tasks.session(seldom, tmp_path / "seldom").run()
  for name in ("mean_output", "mae", "training_loss"):
    assert trainer.state.host.history.series("train", name) == seldom.state.host.history.series("train", name)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_run_killed_inside_an_evaluation_ends_like_the_one_that_was_not(tmp_path, num_replicas):
  def task(params):
    return Mortal(params, layers=small_tasks.everything)

  config = config_of(steps_per_loop=4, validation_interval=3, checkpoint_interval=3, train_steps=12)
  whole = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)
  small_tasks.session(whole, tmp_path / "whole").run()
  for evaluations in (4, 10**6):
    Mortal.evaluations_left = evaluations
    trainer = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)
    try:
      small_tasks.session(trainer, tmp_path / "killed").run()
    except Killed:
      assert 0 < trainer.state.step < 12
  assert small_tasks.bits(trainer) == small_tasks.bits(whole)
  assert trainer.state.host.history.rows == whole.state.host.history.rows


def test_another_batch_size_goes_on_where_the_data_were(tmp_path):
  config = config_of(batch_size=2, train_steps=4, train_data={"shuffle": False})
  small_tasks.session(small_tasks.build_trainer(config, task=Recording), tmp_path).run()
  config = config_of(batch_size=4, train_steps=6, train_data={"shuffle": False})
  trainer = small_tasks.build_trainer(config, task=Recording)
  small_tasks.session(trainer, tmp_path).run()
  assert trainer.task.batches() == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_another_number_of_replicas_goes_on_with_the_same_global_batches(tmp_path):
  whole = stopped_and_resumed(tmp_path / "whole", [8], config_of(), task=Recording)
  config = config_of()
  stopped_and_resumed(tmp_path / "parts", [4], config, task=Recording)
  parts = stopped_and_resumed(tmp_path / "parts", [8], config, task=Recording, num_replicas=2)
  assert parts.task.batches() == whole.task.batches()[4:]


def test_a_plain_pipeline_is_skipped_forward(tmp_path):
  def task(params):
    return small_tasks.PipelineRegression(params, layers=small_tasks.everything)

  whole = stopped_and_resumed(tmp_path / "whole", [12], config_of(), task=task)
  parts = stopped_and_resumed(tmp_path / "parts", [5, 12], config_of(), task=task)
  assert parts.train_input.exact
  assert small_tasks.bits(parts) == small_tasks.bits(whole)


@pytest.fixture
def float16():
  tf_keras.mixed_precision.set_global_policy("mixed_float16")
  yield RuntimeConfig(seed=3, mixed_precision_dtype="float16")
  tf_keras.mixed_precision.set_global_policy("float32")


def overflowing(runtime, num_replicas=1, legacy=False, **kwargs):
  """A trainer whose every step overflows float16 and halves the loss scale, 2**40 at first."""
  config = config_of(
    runtime=runtime, optimizer_config=small_tasks.optimization("adam", legacy=legacy, ema=EmaConfig()), **kwargs
  )
  trainer = small_tasks.build_trainer(config, num_replicas=num_replicas)
  trainer.optimizer._loss_scale._current_loss_scale.assign(2.0**40)
  return trainer


def scale_of(trainer):
  return trainer.optimizer.loss_scale.numpy()


@pytest.mark.parametrize("num_replicas, legacy", [(1, True), (2, False)])
def test_the_loss_scale_survives_a_restart(tmp_path, float16, legacy, num_replicas):
  first = overflowing(float16, num_replicas, legacy, train_steps=4)
  weights = first.model.get_weights()
  small_tasks.session(first, tmp_path).run()
  assert scale_of(first) == 2.0**36
  np.testing.assert_equal(first.model.get_weights(), weights)
  second = overflowing(float16, num_replicas, legacy, train_steps=6)
  small_tasks.session(second, tmp_path).run()
  assert scale_of(second) == 2.0**34


def test_every_checkpoint_holds_the_loss_scale_of_its_step_though_it_is_written_in_the_background(tmp_path, float16):
  trainer = overflowing(float16, train_steps=6, steps_per_loop=1, checkpoint_interval=1, max_to_keep=10)
  assert trainer.config.trainer.async_checkpoint
  small_tasks.session(trainer, tmp_path).run()
  for step in range(7):
    prefix = str(tmp_path / f"ckpt-{step}")
    (name,) = [name for name, _ in tf.train.list_variables(prefix) if "current_loss_scale" in name]
    assert tf.train.load_variable(prefix, name) == 2.0 ** (40 - step)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_learning_rate_goes_on_where_it_was(tmp_path, legacy):
  config = small_tasks.optimization("adam", legacy=legacy)
  cosine = dataclasses.replace(config.learning_rate.cosine, initial_learning_rate=0.1, decay_steps=10)
  rate = dataclasses.replace(config.learning_rate, type="cosine", cosine=cosine)
  config = config_of(
    optimizer_config=dataclasses.replace(config, learning_rate=rate), steps_per_loop=1, validation_interval=10
  )
  whole = stopped_and_resumed(tmp_path / "whole", [8], config)
  parts = stopped_and_resumed(tmp_path / "parts", [3, 8], config)
  rates = whole.state.host.history.series("train", "learning_rate")
  assert parts.state.host.history.series("train", "learning_rate") == rates
  expected = [0.1 * 0.5 * (1 + np.cos(np.pi * step / 10)) for step in range(8)]
  np.testing.assert_allclose([value for _, value in rates], expected, rtol=1e-6)


def test_the_seed_zero_is_a_seed():
  config = small_tasks.experiment(runtime=RuntimeConfig(seed=0))
  trainers = [small_tasks.build_trainer(config, task=Recording) for _ in range(2)]
  for trainer in trainers:
    assert trainer.seed == 0
    small_tasks.train(trainer, 4)
  assert trainers[0].task.batches() == trainers[1].task.batches()
  tf.nest.map_structure(np.testing.assert_array_equal, *[t.model.get_weights() for t in trainers])
