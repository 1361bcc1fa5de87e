import numpy as np
import pytest
import tensorflow as tf

from official_trainer.distribute.replicas import (
  average_statistics,
  replica_statistics,
  round_for_exact_mean,
  split_batch,
)
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def magnitudes(size=4000):
  """Random float32 of every magnitude that matters, both signs, subnormal ones among them."""
  generator = np.random.default_rng(0)
  values = generator.uniform(0.5, 2.0, size) * 10.0 ** generator.uniform(-44, 37, size)
  special = [0.0, -0.0, 1.0, -1.0, 1 / 3, 1e-45, 1.17549435e-38]
  return np.concatenate([values * generator.choice([-1, 1], size), special]).astype(np.float32)


@pytest.mark.parametrize("num_replicas", range(1, 9))
def test_the_mean_of_equal_copies_is_the_value(num_replicas):
  rounded = round_for_exact_mean(tf.constant(magnitudes()), num_replicas).numpy()
  total = np.zeros_like(rounded)
  for _ in range(num_replicas):
    total = total + rounded
  assert (total / np.float32(num_replicas)).tobytes() == (rounded + np.float32(0)).tobytes()
  again = round_for_exact_mean(tf.constant(rounded), num_replicas).numpy()
  assert again.tobytes() == rounded.tobytes()


@pytest.mark.parametrize("num_replicas", range(1, 9))
def test_rounding_moves_a_value_by_less_than_four_units_in_the_last_place(num_replicas):
  values = magnitudes()
  rounded = round_for_exact_mean(tf.constant(values), num_replicas).numpy()
  assert (np.abs(rounded.astype(np.float64) - values) <= 4 * np.spacing(np.abs(values))).all()
  if num_replicas in (1, 2, 4):
    assert rounded.tobytes() == values.tobytes()


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_rounding_keeps_infinities_and_nan(num_replicas):
  values = np.array([np.inf, -np.inf, np.nan], np.float32)
  np.testing.assert_array_equal(round_for_exact_mean(tf.constant(values), num_replicas), values)


@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_a_checkpoint_brings_back_the_statistics_of_every_replica(tmp_path, num_replicas):
  strategy = small_tasks.strategy_of(num_replicas)
  values = np.random.default_rng(1).normal(size=[num_replicas, 50]).astype(np.float32)
  with strategy.scope():
    variable = statistics([50])
    for local, value in zip(strategy.experimental_local_results(variable), values, strict=True):
      local.assign(value)
    tf.function(lambda: average_statistics(strategy, [variable]))()
    before = [local.numpy() for local in strategy.experimental_local_results(variable)]
    path = tf.train.Checkpoint(v=variable).write(str(tmp_path / "ckpt"))
    variable.assign(tf.zeros([50]))
    tf.train.Checkpoint(v=variable).read(path).assert_consumed()
    after = [local.numpy() for local in strategy.experimental_local_results(variable)]
  assert len({value.tobytes() for value in before}) == 1
  np.testing.assert_allclose(before[0], values.mean(axis=0), rtol=1e-5, atol=1e-6)
  assert [value.tobytes() for value in after] == [value.tobytes() for value in before]


def statistics(shape):
  return tf.Variable(
    tf.zeros(shape),
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.MEAN,
  )


def test_statistics_are_the_floating_variables_that_replicas_keep_for_themselves():
  with small_tasks.strategy_of(2).scope():
    mine = statistics([2])
    counter = tf.Variable(
      0,
      trainable=False,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    weight = tf.Variable([1.0])
  assert [v is mine for v in replica_statistics([weight, mine, counter])] == [True]


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("synchronized", [False, True])
def test_d57_after_every_step_all_replicas_have_the_same_batch_statistics(num_replicas, synchronized):
  config = small_tasks.experiment(batch_size=6)
  trainer = small_tasks.build_trainer(
    config,
    task=lambda params: small_tasks.Regression(params, layers=lambda: small_tasks.normalised(synchronized)),
    num_replicas=num_replicas,
  )
  moving = replica_statistics(trainer.model.variables)
  assert len(moving) == 2
  last = None
  for _ in range(4):
    small_tasks.train(trainer, 1)
    values = [
      [local.numpy().tobytes() for local in trainer.strategy.experimental_local_results(variable)]
      for variable in moving
    ]
    assert all(len(set(copies)) == 1 for copies in values)
    assert values != last
    last = values


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_each_replica_takes_its_slice_of_the_global_batch(num_replicas):
  strategy = small_tasks.strategy_of(num_replicas)
  batch = {"x": tf.reshape(tf.range(16), [8, 2]), "mask": None, "y": (tf.range(8),)}
  for split in (split_batch, tf.function(split_batch)):
    with strategy.scope():
      parts = split(strategy, batch, num_replicas)
      numbers = strategy.experimental_local_results(parts["y"][0])
      rows = strategy.experimental_local_results(parts["x"])
    assert np.concatenate(numbers).tolist() == list(range(8))
    assert {len(part) for part in numbers} == {8 // num_replicas}
    np.testing.assert_array_equal(np.concatenate(rows), batch["x"])
    assert all(part is None for part in strategy.experimental_local_results(parts["mask"]))


def test_batches_of_unknown_size_are_split_too():
  strategy = small_tasks.strategy_of(2)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
  def split(batch):
    return strategy.experimental_local_results(split_batch(strategy, batch, strategy.num_replicas_in_sync))

  assert [part.numpy().tolist() for part in split(tf.range(6))] == [[0, 1, 2], [3, 4, 5]]
