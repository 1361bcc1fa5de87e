import numpy as np
import pytest
import tensorflow as tf

from official_trainer.distribute.fingerprint import Fingerprint, checksum
from official_trainer.distribute.peers import Alone, Peers
from official_trainer.errors import ReplicasDiffer
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


class Two(Peers):
  """Two processes, of which the other one's values are these."""

  num = 2
  index = 0
  names = ("worker 0", "worker 1")

  def __init__(self, others):
    self._others = others

  def gathered(self, values):
    return np.asarray([values, self._others(values)], np.int64)

  def results(self, value):
    raise NotImplementedError


def variables_of(strategy):
  with strategy.scope():
    return [
      tf.Variable([1.0, -2.0], name="kernel"),
      tf.Variable(np.nan, name="broken"),
      tf.Variable(3, dtype=tf.int64, name="count", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA),
      tf.Variable(True, name="flag"),
      tf.Variable([1.5, 2.5], dtype=tf.float16, name="half"),
      tf.Variable(0.0, name="own", synchronization=tf.VariableSynchronization.ON_READ),
      tf.Variable("text", name="text") if strategy.num_replicas_in_sync == 1 else tf.Variable(0.0, name="more"),
    ]


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_equal_replicas_pass_whatever_they_hold(num_replicas):
  strategy = small_tasks.strategy_of(num_replicas)
  Fingerprint(strategy, Alone(strategy), variables_of(strategy)).require_equal(7)


def test_one_flipped_bit_is_reported_with_the_variable_and_the_replica():
  strategy = small_tasks.strategy_of(4)
  variables = variables_of(strategy)
  fingerprint = Fingerprint(strategy, Alone(strategy), variables)
  fingerprint.require_equal(6)
  odd = strategy.experimental_local_results(variables[0])[2]
  odd.assign(tf.bitcast(tf.bitcast(odd.read_value(), tf.int32) + tf.constant([0, 1]), tf.float32))
  with pytest.raises(ReplicasDiffer) as raised:
    fingerprint.require_equal(7)
  lines = str(raised.value).splitlines()
  assert lines[:2] == ["at step 7 the replicas hold different values:", "  kernel [2]: replica 2"]
  assert "broken" not in str(raised.value)


def test_a_value_that_each_replica_has_for_itself_may_differ():
  strategy = small_tasks.strategy_of(2)
  variables = variables_of(strategy)
  strategy.experimental_local_results(variables[5])[1].assign(9.0)
  Fingerprint(strategy, Alone(strategy), variables).require_equal(7)


def test_another_process_whose_step_is_another_is_named():
  strategy = small_tasks.strategy_of(2)
  peers = Two(lambda values: [0, *values[1:]])
  with pytest.raises(
    ReplicasDiffer, match=r"not at the same step \(worker 0: 7, worker 1: 0\).*read the same model_dir"
  ):
    Fingerprint(strategy, peers, variables_of(strategy)).require_equal(7)


def test_another_process_whose_weights_are_others_is_named():
  strategy = small_tasks.strategy_of(2)
  peers = Two(lambda values: [values[0], values[1] + 1, *values[2:]])
  with pytest.raises(ReplicasDiffer, match=r"kernel \[2\]: replica 2 \(worker 1\)"):
    Fingerprint(strategy, peers, variables_of(strategy)).require_equal(7)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int64])
def test_the_checksum_is_that_of_the_raw_bits(dtype):
  value = tf.cast([3, 1, 2, 0], dtype)
  size = dtype.size
  numbers = np.frombuffer(value.numpy().tobytes(), {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[size])
  assert checksum(value).numpy() == numbers.astype(np.int64).sum()


def test_plus_and_minus_zero_are_different_bits():
  # As arrays: TensorFlow takes one scalar for the other.
  assert checksum(tf.constant([0.0])) != checksum(tf.constant([-0.0]))
