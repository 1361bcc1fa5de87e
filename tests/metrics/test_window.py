import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.peers import Alone
from official_trainer.metrics.window import read_window, write_window
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def metrics_of(strategy):
  with strategy.scope():
    return [
      tf_keras.metrics.Mean(name="mean"),
      tf_keras.metrics.MeanTensor(name="tensor", shape=(2,)),
      tf_keras.metrics.Sum(name="sum"),
    ]


def update(strategy, metrics, values):
  @tf.function
  def step(values):
    def replica(values):
      mean, tensor, total = metrics
      mean.update_state(values)
      tensor.update_state(tf.stack([values, values / 3]))
      total.update_state(values)

    strategy.run(replica, args=(values,))

  for value in values:
    with strategy.scope():
      step(
        strategy.experimental_distribute_values_from_function(
          lambda context, value=value: tf.constant(value + context.replica_id_in_sync_group / 7, tf.float32)
        )
      )


def results(metrics):
  return [metric.result().numpy().tobytes() for metric in metrics]


def through_json(window):
  return json.loads(json.dumps(window))


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_a_report_that_is_interrupted_ends_with_the_same_bits(num_replicas):
  strategy = small_tasks.strategy_of(num_replicas)
  values = np.random.default_rng(0).normal(size=20).tolist()
  whole = metrics_of(strategy)
  update(strategy, whole, values)
  first, second = metrics_of(strategy), metrics_of(strategy)
  update(strategy, first, values[:9])
  window = through_json(read_window(strategy, first, Alone(strategy)))
  write_window(strategy, second, window, Alone(strategy))
  assert through_json(read_window(strategy, second, Alone(strategy))) == window
  update(strategy, second, values[9:])
  assert results(second) == results(whole)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1), (2, 4), (3, 2)])
def test_on_another_number_of_replicas_the_totals_are_kept(before, after):
  old, new = small_tasks.strategy_of(before), small_tasks.strategy_of(after)
  first, second = metrics_of(old), metrics_of(new)
  update(old, first, [1.0, 2.0])
  write_window(new, second, through_json(read_window(old, first, Alone(old))), Alone(new))
  np.testing.assert_allclose(second[0].result(), first[0].result(), rtol=1e-6)
  np.testing.assert_allclose(second[1].result(), first[1].result(), rtol=1e-6)
  np.testing.assert_allclose(second[2].result(), first[2].result(), rtol=1e-6)


def test_a_metric_that_is_new_starts_anew():
  strategy = small_tasks.strategy_of(1)
  first = metrics_of(strategy)[:1]
  update_only_mean = first[0].update_state
  update_only_mean(4.0)
  second = metrics_of(strategy)
  write_window(strategy, second, read_window(strategy, first, Alone(strategy)), Alone(strategy))
  assert second[0].result() == 4.0
  assert second[2].result() == 0.0


def test_infinities_and_nan_survive_json():
  strategy = small_tasks.strategy_of(1)
  first, second = metrics_of(strategy), metrics_of(strategy)
  first[0].update_state([np.nan])
  first[2].update_state([np.inf])
  write_window(strategy, second, through_json(read_window(strategy, first, Alone(strategy))), Alone(strategy))
  assert results(second) == results(first)
