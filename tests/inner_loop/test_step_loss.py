import pytest
import tensorflow as tf
import tf_keras

from official_trainer.data.padding import Batch
from official_trainer.inner_loop.step_loss import LoopLoss, add_loss, mask_argument


def mean_of(*pairs):
  metric = tf_keras.metrics.Mean()
  for loss, batch in pairs:
    add_loss(metric, {"loss": tf.constant(loss)}, "loss", batch)
  return metric


def test_a_loss_counts_for_the_examples_of_its_batch_and_not_for_padding():
  whole = Batch((tf.zeros([3, 2]), tf.zeros([3])), None)
  padded = Batch((tf.zeros([3, 2]), tf.zeros([3])), tf.constant([1.0, 0.0, 0.0]))
  assert float(mean_of((1.0, whole), (5.0, padded)).result()) == 2.0


def test_a_replica_without_examples_adds_nothing_and_not_nan():
  empty = Batch((tf.zeros([2, 2]),), tf.zeros([2]))
  assert float(mean_of((float("nan"), empty), (3.0, Batch((tf.zeros([1]),), None))).result()) == 3.0


def test_d7_the_weight_of_the_task_goes_before_the_number_of_examples():
  metric = tf_keras.metrics.Mean()
  for loss, weight in ((1.0, 9.0), (11.0, 1.0)):
    logs = {"loss": tf.constant(loss), "loss_weight": tf.constant(weight)}
    add_loss(metric, logs, "loss", Batch((tf.zeros([4]),), None))
  assert float(metric.result()) == 2.0


def test_the_mean_of_a_loop_is_its_own_where_the_report_goes_on():
  metric = tf_keras.metrics.Mean()
  loop = LoopLoss(metric)
  assert loop.mean is None
  loop.begin(is_reset=True)
  metric.update_state([2.0, 4.0])
  assert loop.mean == 3.0
  loop.begin(is_reset=False)
  assert loop.mean is None
  metric.update_state([10.0])
  assert loop.mean == 10.0
  metric.reset_state()
  loop.begin(is_reset=True)
  metric.update_state([1.0])
  assert loop.mean == pytest.approx(1.0)


def test_a_mask_is_an_argument_only_where_there_is_one():
  assert mask_argument(Batch(1, None)) == {}
  assert mask_argument(Batch(1, 2)) == {"mask": 2}
