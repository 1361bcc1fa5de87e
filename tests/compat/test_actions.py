"""Model Garden's actions by our hands: what its own tests do not ask."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling import optimization

from official_trainer.compat.actions import EMACheckpointing, PruningAction, RecoveryAction, RecoveryCondition
from official_trainer.errors import TrainingDiverged
from tests.optim.test_pruning import Pruned
from tests.tiny import TinyConfig


def averaging(model):
  optimizer = optimization.ExponentialMovingAverage(tf_keras.optimizers.legacy.SGD(), trainable_weights_only=False)
  optimizer.shadow_copy(model)
  return optimizer


def test_averages_are_saved_and_the_weights_are_afterwards_what_they_were_to_the_bit(tmp_path):
  model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
  optimizer = averaging(model)
  kernel = model.variables[0]
  values = np.array([[1e-30, np.inf], [1.0, 0.1], [np.nan, 3.0]], np.float32)
  kernel.assign(values)
  checkpoint = tf.train.Checkpoint(model=model)
  average = optimizer.get_slot(kernel, "average").numpy()
  EMACheckpointing(tmp_path, optimizer, checkpoint)({})
  assert kernel.numpy().tobytes() == values.tobytes()
  checkpoint.read(tf.train.latest_checkpoint(tmp_path / "ema_checkpoints")).assert_existing_objects_matched()
  assert kernel.numpy().tobytes() == average.tobytes()


def test_pruned_weights_are_masked_and_their_sparsity_is_shown(tmp_path):
  model = Pruned(TinyConfig()).build_model()
  kernel, mask, _ = model.layers[0].pruning_vars[0]
  action = PruningAction(str(tmp_path), model, tf_keras.optimizers.SGD())
  mask.assign(tf.concat([tf.zeros([1, 8]), tf.ones([2, 8])], axis=0))
  action({})
  assert [float(np.mean(row == 0)) for row in kernel.numpy()] == [1.0, 0.0, 0.0]
  [file] = (tmp_path / "metrics").iterdir()
  shown = {
    value.tag: tf.make_ndarray(value.tensor).item()
    for event in tf.compat.v1.train.summary_iterator(str(file))
    for value in event.summary.value
  }
  assert shown == {"sparsity": pytest.approx(8 / 40)}


def test_a_bound_holds_from_its_step_on_and_nan_always_counts():
  step = tf.Variable(4, dtype=tf.int64)
  condition = RecoveryCondition(step, loss_upper_bound=0.5, recovery_begin_steps=5, recovery_max_trials=1)
  assert not condition({"training_loss": 0.6})
  assert condition({"training_loss": tf.constant([np.nan])})
  step.assign(5)
  with pytest.raises(TrainingDiverged, match="at step 5: the training loss 0.6 is above .*; it has diverged 2 times"):
    condition({"training_loss": 0.6})


def test_recovery_restores_the_newest_checkpoint(tmp_path):
  variable = tf.Variable(1.0)
  manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=variable), str(tmp_path), max_to_keep=2)
  manager.save()
  variable.assign(7.0)
  RecoveryAction(manager)({})
  assert float(variable) == 1.0
