"""Measuring never changes what is measured (issue point 5)."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.restoring import restore_exactly
from official_trainer.optim.config import EmaConfig
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

MAGNITUDES = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-8, -1e-8, 1e8, -1e8, 1e-40, 1.0, 3.14159], np.float32)


def averaging_trainer(num_replicas=1, *, layers=small_tasks.everything, task_class=small_tasks.Regression, **kwargs):
  config = small_tasks.experiment(
    optimizer_config=small_tasks.optimization("adam", ema=EmaConfig(average_decay=0.9)), batch_size=12
  )
  return small_tasks.build_trainer(
    config,
    task=lambda params: task_class(params, layers=layers),
    num_replicas=num_replicas,
    **kwargs,
  )


def fill(variables, generator):
  for variable in variables:
    values = generator.choice(MAGNITUDES, size=variable.shape)
    finite = np.isfinite(values)
    values[finite] *= generator.uniform(0.5, 2.0, size=finite.sum()).astype(np.float32)
    variable.assign(values)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_thousand_swaps_change_no_bit(num_replicas):
  trainer = averaging_trainer(num_replicas)
  ema = trainer.state.ema
  generator = np.random.default_rng(7)
  fill(trainer.model.variables, generator)
  fill(ema.averages, generator)
  before = small_tasks.bits(trainer)
  with ema.swapped_in(1):
    swapped = small_tasks.bits(trainer)
  assert swapped["model"] == before["averages"]
  assert swapped["averages"] == before["model"]
  for _ in range(499):
    with ema.swapped_in(1):
      pass
  assert small_tasks.bits(trainer) == before
  assert any(np.isnan(v.numpy()).any() for v in trainer.model.variables)


class Boom(Exception):
  pass


class Raising(small_tasks.Regression):
  """Its evaluation raises `error`: where the step is traced, or on the host after a step."""

  error: type[BaseException] | None = None
  where = "validation_step"

  def maybe_raise(self, where):
    if self.error is not None and where == self.where:
      raise self.error

  def validation_step(self, *args, **kwargs):
    self.maybe_raise("validation_step")
    return super().validation_step(*args, **kwargs)

  def aggregate_logs(self, state, step_outputs):
    self.maybe_raise("aggregate_logs")
    return {"gathered": 1}

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    self.maybe_raise("reduce_aggregated_logs")
    return {}


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_m26_an_error_or_ctrl_c_inside_an_evaluation_leaves_the_raw_weights(num_replicas):
  trainer = averaging_trainer(num_replicas, task_class=Raising)
  small_tasks.train(trainer, 3)
  before = small_tasks.bits(trainer)
  assert before["model"] != before["averages"]
  for where in ("validation_step", "aggregate_logs", "reduce_aggregated_logs"):
    for error in (Boom, KeyboardInterrupt):
      trainer.task.where, trainer.task.error = where, error
      with pytest.raises(error):
        small_tasks.evaluate(trainer)
      assert small_tasks.bits(trainer) == before
  trainer.task.error = None
  small_tasks.evaluate(trainer)
  assert small_tasks.bits(trainer) == before


def test_an_error_in_the_exporter_leaves_the_raw_weights():
  class Failing:
    best_ckpt_logs = None

    def maybe_export_checkpoint(self, checkpoint, logs, step):
      raise OSError("disk full")

  trainer = averaging_trainer(checkpoint_exporter=Failing())
  small_tasks.train(trainer, 2)
  before = small_tasks.bits(trainer)
  with pytest.raises(OSError, match="disk full"):
    small_tasks.evaluate(trainer)
  assert small_tasks.bits(trainer) == before


def test_evaluation_sees_the_averages_and_training_goes_on_from_the_raw_weights():
  trainer, other = averaging_trainer(), averaging_trainer()
  small_tasks.train(trainer, 3)
  small_tasks.train(other, 3)
  averages = [average.numpy() for average in trainer.state.ema.averages]
  expected = tf_keras.models.clone_model(trainer.model)
  expected.set_weights([averages[_index(trainer.model.variables, w)] for w in trainer.model.weights])
  features, targets = trainer.task.validation
  loss = np.mean(np.square(expected(features).numpy() - targets))
  np.testing.assert_allclose(small_tasks.evaluate(trainer)["validation_loss"], loss, rtol=1e-6)
  small_tasks.train(trainer, 3)
  small_tasks.train(other, 3)
  assert small_tasks.bits(trainer) == small_tasks.bits(other)


def _index(variables, wanted):
  return next(i for i, variable in enumerate(variables) if variable is wanted)


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_written_while_the_averages_are_in_place_holds_each_under_its_name(
  tmp_path, num_replicas, asynchronous
):
  trainer = averaging_trainer(num_replicas)
  small_tasks.train(trainer, 3)
  before = small_tasks.bits(trainer)
  with trainer.strategy.scope(), trainer.state.ema.swapped_in(3):
    with trainer.state.packed() as checkpoint:
      checkpoint.write(str(tmp_path / "ckpt"), tf.train.CheckpointOptions(enable_async=asynchronous))
    assert small_tasks.bits(trainer)["model"] == before["averages"]
    if asynchronous:
      checkpoint.sync()
  other = averaging_trainer(num_replicas)
  with other.strategy.scope():
    restore_exactly(other.checkpoint, str(tmp_path / "ckpt"))
  assert small_tasks.bits(other) == before
