import random

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer import random_state
from official_trainer.random_state import StepKeyedRandom, draw_seed, seed_everything, stateful_random_ops
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

UNITS = 64


def dropping_model(num_layers=2):
  seed_everything(0)
  inputs = tf_keras.layers.Input((UNITS,))
  # Each layer's output on its own, so that two layers can be compared.
  outputs = [tf_keras.layers.Dropout(0.5)(inputs) for _ in range(num_layers)]
  return tf_keras.Model(inputs, outputs)


def masks(strategy, model, keyed, steps):
  """Returns bool [step, replica, layer, unit]: what dropout keeps."""

  @tf.function
  def step_masks(step):
    def replica_masks():
      keyed.assign(step)
      return tf.stack([tf.not_equal(output[0], 0) for output in model(tf.ones([1, UNITS]), training=True)])

    return tf.stack(strategy.experimental_local_results(strategy.run(replica_masks)))

  with strategy.scope():
    return np.stack([step_masks(tf.constant(step, tf.int64)).numpy() for step in steps])


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_t33_d3_masks_are_a_function_of_seed_step_replica_and_layer(num_replicas):
  strategy = small_tasks.strategy_of(num_replicas)
  with strategy.scope():
    model = dropping_model()
    keyed = StepKeyedRandom(model, seed=5)
    assert len(keyed) == 2
  drawn = masks(strategy, model, keyed, [7, 8, 7, 2**40])
  np.testing.assert_array_equal(drawn[0], drawn[2])
  np.testing.assert_array_equal(masks(strategy, model, StepKeyedRandom(model, seed=5), [7])[0], drawn[0])
  other_seed = masks(strategy, model, StepKeyedRandom(model, seed=6), [7])
  streams = np.concatenate([drawn[[0, 1, 3]], other_seed]).reshape([-1, UNITS])
  assert len(np.unique(streams, axis=0)) == len(streams)
  # Two independent masks agree in half of their places, give or take.
  for i, first in enumerate(streams):
    for second in streams[i + 1 :]:
      assert 10 < (first == second).sum() < 54


def test_the_keys_of_all_generators_and_replicas_differ():
  stride = int(random_state._REPLICA_STRIDE)
  for seed in (0, 1, 2**31 - 1):
    keys = {
      (random_state._mix(seed, generator) + replica * stride) % 2**64
      for generator in range(64)
      for replica in range(256)
    }
    assert len(keys) == 64 * 256


def test_the_draws_of_neighbouring_steps_do_not_overlap():
  # Within a step the lower half of the counter grows; the step is its upper half.
  strategy = tf.distribute.get_strategy()
  model = dropping_model(1)
  keyed = StepKeyedRandom(model, seed=1)
  generator = keyed.generators[0]

  def state_after(step, draws):
    strategy.run(lambda: keyed.assign(tf.constant(step, tf.int64)))
    for _ in range(draws):
      generator.uniform([1000])
    return generator.state.numpy()

  start, later, following = state_after(4, 0), state_after(4, 50), state_after(5, 0)
  assert start[0] == 0 and later[0] > 0
  assert start[1] == later[1] == 4 and following[1] == 5
  assert start[2] == later[2] == following[2]


def test_random_layers_inside_cells_and_nested_models_are_found():
  seed_everything(0)
  inputs = tf_keras.layers.Input((4, 3))
  layers = tf_keras.layers
  inner = tf_keras.Sequential([layers.LSTM(2, dropout=0.5, recurrent_dropout=0.5), layers.GaussianNoise(1.0)])
  attended = layers.MultiHeadAttention(1, 2, dropout=0.1)(inputs, inputs)
  model = tf_keras.Model(inputs, inner(attended))
  keyed = StepKeyedRandom(model, seed=1)
  assert len(keyed) == 4  # The attention's, the recurrent layer's and its cell's, the noise's.
  step = tf.function(lambda step: (keyed.assign(step), model(tf.ones([2, 4, 3]), training=True))[1])
  np.testing.assert_array_equal(step(tf.constant(1, tf.int64)), step(tf.constant(1, tf.int64)))
  assert (step(tf.constant(1, tf.int64)).numpy() != step(tf.constant(2, tf.int64)).numpy()).any()


def test_t34_generator_state_is_in_no_checkpoint(tmp_path):
  path = tf.train.Checkpoint(model=dropping_model()).write(str(tmp_path / "ckpt"))
  assert [name for name, _ in tf.train.list_variables(path) if "random" in name.lower()] == []


def test_one_seed_decides_python_numpy_and_weights():
  def drawn():
    seed_everything(9)
    layer = tf_keras.layers.Dense(3)
    layer.build([None, 2])
    return random.random(), np.random.rand(), layer.kernel.numpy().tolist()

  assert drawn() == drawn()


def test_drawn_seeds_are_valid_and_differ():
  seeds = {draw_seed() for _ in range(20)}
  assert len(seeds) > 1
  assert all(0 <= seed < 2**31 for seed in seeds)


def test_stateful_random_ops_are_found_with_their_line_and_stateless_ones_are_not():
  graph = tf.Graph()
  with graph.as_default():
    tf.random.stateless_uniform([2], seed=[1, 2])
    tf.random.normal([2])  # This line.
  (found,) = stateful_random_ops(graph)
  assert found.kind == "RandomStandardNormal"
  path, _, line = found.where.rpartition(":")
  assert path == __file__
  with open(__file__) as file:
    assert "# This line." in file.read().splitlines()[int(line) - 1]


class Drawing(small_tasks.Regression):
  """A task whose step draws from TensorFlow's hidden state."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    noise = tf.random.uniform([], name="noise")  # The line at fault.
    return super().build_losses(labels, model_outputs) * noise


def test_a_step_that_draws_from_unsaved_state_is_named_in_a_warning(caplog):
  small_tasks.train(small_tasks.build_trainer(task=Drawing), 2)
  assert "a resumed run will differ" in caplog.text
  assert "RandomUniform" in caplog.text and f"{__file__}:" in caplog.text


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_where_exact_resume_is_asked_for_such_a_step_is_an_error(num_replicas):
  config = small_tasks.experiment(exact_resume=True, batch_size=4)
  trainer = small_tasks.build_trainer(config, task=Drawing, num_replicas=num_replicas)
  with pytest.raises(ValueError, match=r"exact_resume is set.*\n.*RandomUniform.*test_random_state\.py:\d+"):
    small_tasks.train(trainer, 1)


def test_a_step_with_dropout_can_be_resumed_exactly_and_warns_of_nothing(caplog):
  config = small_tasks.experiment(exact_resume=True)
  trainer = small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, layers=small_tasks.everything)
  )
  small_tasks.train(trainer, 1)
  assert "differ" not in caplog.text
