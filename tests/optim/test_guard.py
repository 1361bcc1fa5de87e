"""A bad update leaves no trace but its count, on one replica and on several."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.optim.config import EmaConfig
from official_trainer.optim.guard import UpdateGuard
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

ROWS = 48


def data_with_bad_row(row: int | None):
  features, targets = small_tasks.rows(ROWS)
  if row is not None:
    features[row] = np.nan
  return features, targets


def trainer_of(row, *, num_replicas=1, layers=None, skip=True, runtime=None, **optimizer):
  config = small_tasks.experiment(
    train_data={"shuffle": False},
    optimizer_config=small_tasks.optimization(ema=EmaConfig(average_decay=0.9), **{"kind": "adam", **optimizer}),
    skip_nonfinite_updates=skip,
    **({} if runtime is None else {"runtime": runtime}),
  )
  task = lambda params: small_tasks.Regression(  # noqa: E731
    params, train=data_with_bad_row(row), layers=layers or (lambda: small_tasks.normalised(synchronized=False))
  )
  return small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)


# Batches hold 4 rows: row 8 is in the first half of batch 2, row 11 in the second, which is another replica's.
@pytest.mark.parametrize(("num_replicas", "row", "legacy"), [(1, 8, False), (2, 8, True), (2, 11, False), (1, 8, True)])
def test_a_bad_update_leaves_no_bit_changed_on_any_replica_but_the_step(num_replicas, row, legacy):
  trainer = trainer_of(row, num_replicas=num_replicas, legacy=legacy)
  small_tasks.train(trainer, 2)
  before = small_tasks.bits(trainer)
  logs = small_tasks.train(trainer, 1)
  after = small_tasks.bits(trainer)
  assert before.pop("step") != after.pop("step")
  assert before == after
  assert logs["skipped_updates"] == 1.0
  assert small_tasks.train(trainer, 1)["skipped_updates"] == 0.0
  assert small_tasks.bits(trainer)["model"] != after["model"]


def test_the_report_is_the_mean_over_the_updates_that_were_applied():
  logs = small_tasks.train(trainer_of(8, kind="sgd"), 3)
  clean = small_tasks.train(trainer_of(None, kind="sgd"), 2)
  assert logs["training_loss"] == clean["training_loss"]
  assert logs["mae"] == clean["mae"]
  assert (logs["skipped_updates"], clean["skipped_updates"]) == (1.0, 0.0)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_without_bad_updates_the_bits_are_those_of_an_unguarded_run(num_replicas):
  guarded, free = (trainer_of(None, num_replicas=num_replicas, skip=skip) for skip in (True, False))
  small_tasks.train(guarded, 5)
  small_tasks.train(free, 5)
  assert small_tasks.bits(guarded) == small_tasks.bits(free)


def test_a_step_that_xla_compiles_skips_as_well():
  runtime = small_tasks.RuntimeConfig(seed=3, enable_xla=True)
  trainer = trainer_of(8, runtime=runtime)
  small_tasks.train(trainer, 2)
  before = small_tasks.bits(trainer)
  assert small_tasks.train(trainer, 1)["skipped_updates"] == 1.0
  assert small_tasks.bits(trainer)["model"] == before["model"]


def test_dynamic_loss_scaling_sees_the_bad_update_and_lowers_its_scale():
  model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
  optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.1))
  optimizer.build(model.trainable_variables)
  guard = UpdateGuard(optimizer, model)
  scale = float(optimizer.loss_scale)
  before = [weight.numpy().tobytes() for weight in model.weights]

  @tf.function
  def step():
    kept = guard.keep([])
    optimizer.apply_gradients([(weight * np.nan, weight) for weight in model.trainable_variables])
    guard.settle([], kept)

  step()
  assert [weight.numpy().tobytes() for weight in model.weights] == before
  assert float(optimizer.loss_scale) == scale / 2
  assert float(guard.metrics[0].result()) == 1.0


def test_frozen_weights_are_not_copied_in_every_step():
  model = tf_keras.Sequential(
    [tf_keras.layers.Input((2,)), tf_keras.layers.Dense(2), tf_keras.layers.BatchNormalization()]
  )
  model.layers[0].trainable = False
  guard = UpdateGuard(tf_keras.optimizers.SGD(0.1), model)
  assert [v.name for v in guard._statistics] == [v.name for v in model.layers[1].non_trainable_variables]
