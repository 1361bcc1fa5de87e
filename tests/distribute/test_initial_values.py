import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.initial_values import computed_on_host, peak_memory
from official_trainer.random_state import seed_everything
from tests import small_tasks, tiny

pytestmark = pytest.mark.usefixtures("logical_cpus")


def weights(on_host, num_replicas=1):
  seed_everything(5)
  with small_tasks.strategy_of(num_replicas).scope(), computed_on_host(on_host):
    model = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(4), tf_keras.layers.Dense(2)])
  return [weight.numpy().tobytes() for weight in model.weights]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_t30_initial_values_made_on_the_host_are_the_same(num_replicas):
  assert weights(True, num_replicas) == weights(False, num_replicas)


def test_t30_a_run_tells_the_memory_that_building_it_took(tmp_path):
  run = tiny.build(tmp_path, mode="train", train_steps=1)
  run.run()
  assert "peak memory so far: host " in run.said
  assert peak_memory()["host"] > 50 * 2**20  # TensorFlow alone is more.


def test_initial_values_are_drawn_where_it_was_asked_for():
  places = []

  def initial():
    value = tf.random.stateless_uniform([2], [1, 2])
    places.append(value.device)
    return value

  with tf.device("CPU:1"):
    with computed_on_host(True):
      here = tf.Variable(initial)
    there = tf.Variable(initial)
  assert ["CPU:0" in place for place in places] == [True, False]
  assert here.numpy().tolist() == there.numpy().tolist()
