"""The number of replicas and the cadence of saving change nothing (issue point 3)."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.optim.config import EmaConfig
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

REPLICAS = (1, 2, 4)


class Recording(small_tasks.Regression):
  """Notes which examples each replica sees in each step; the first feature is the example's number."""

  def __init__(self, params):
    features, targets = small_tasks.rows(23)
    features[:, 0] = np.arange(23)
    super().__init__(params, train=(features, targets))
    self.seen = collections.defaultdict(dict)

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    features, _ = inputs
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group

    def note(step, replica, numbers, mask):
      self.seen[int(step)][int(replica)] = numbers[mask > 0].astype(int).tolist()
      return np.int64(0)

    present = tf.ones_like(features[:, 0]) if mask is None else mask
    tf.numpy_function(note, [optimizer.iterations, replica, features[:, 0], present], tf.int64)
    return super().train_step(inputs, model, optimizer, metrics, mask)

  def batches(self):
    """Returns the examples of each global batch, in the order of the replicas."""
    return [sum((by_replica[r] for r in sorted(by_replica)), []) for _, by_replica in sorted(self.seen.items())]


def recorded(num_replicas, *, batch_size, task=Recording):
  config = small_tasks.experiment(
    batch_size=batch_size, optimizer_config=small_tasks.optimization(rate=1e-4), train_steps=15
  )
  trainer = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)
  small_tasks.train(trainer, 15)
  return trainer.task.batches()


@pytest.mark.parametrize("batch_size", [8, 6])
def test_any_number_of_replicas_sees_the_same_global_batches_in_the_same_order(batch_size):
  batches = {replicas: recorded(replicas, batch_size=batch_size) for replicas in REPLICAS}
  assert [len(batch) for batch in batches[1]] == [batch_size] * 15
  assert batches[2] == batches[1]
  assert batches[4] == batches[1]
  stream = np.concatenate(batches[1])
  assert sorted(stream[:23]) == sorted(stream[23:46]) == list(range(23))
  assert stream[:23].tolist() != stream[23:46].tolist()


class RecordingPipeline(Recording):
  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    size = input_context.get_per_replica_batch_size(params.global_batch_size)
    dataset = tf.data.Dataset.from_tensor_slices(self.train if params.is_training else self.validation)
    return dataset.shuffle(23, seed=5).batch(size).repeat()


def test_a_plain_pipeline_gives_any_number_of_replicas_the_same_global_batches():
  batches = [recorded(replicas, batch_size=8, task=RecordingPipeline) for replicas in REPLICAS]
  assert [len(batch) for batch in batches[0][:3]] == [8, 8, 7]
  assert batches[1] == batches[0]
  assert batches[2] == batches[0]


def losses(num_replicas, layers):
  config = small_tasks.experiment(batch_size=8, optimizer_config=small_tasks.optimization("adam", 0.01))
  trainer = small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, layers=layers), num_replicas=num_replicas
  )
  values = [small_tasks.train(trainer, 1)["training_loss"] for _ in range(50)]
  return values, small_tasks.evaluate(trainer)["validation_loss"]


@pytest.mark.parametrize(
  "layers",
  [small_tasks.deep, lambda: small_tasks.normalised(synchronized=True)],
  ids=["without batch normalisation", "synchronised batch normalisation"],
)
def test_t32_the_losses_of_fifty_steps_agree_on_any_number_of_replicas(layers):
  reference, evaluated = losses(1, layers)
  assert np.mean(reference[-10:]) < np.mean(reference[:10])
  for replicas in REPLICAS[1:]:
    values, value = losses(replicas, layers)
    np.testing.assert_allclose(values, reference, rtol=1e-5)
    np.testing.assert_allclose(value, evaluated, rtol=1e-5)


def finished(tmp_path, num_replicas, checkpoint_interval):
  config = small_tasks.experiment(
    batch_size=8,
    optimizer_config=small_tasks.optimization("adam", 0.01, ema=EmaConfig()),
    train_steps=30,
    steps_per_loop=5,
    validation_interval=30,
    checkpoint_interval=checkpoint_interval,
  )
  trainer = small_tasks.build_trainer(
    config,
    task=lambda params: small_tasks.Regression(params, layers=small_tasks.everything),
    num_replicas=num_replicas,
  )
  session = small_tasks.session(trainer, tmp_path / f"{num_replicas}-{checkpoint_interval}")
  session.run()
  assert session.store.steps() == list(range(0, 31, checkpoint_interval))
  return small_tasks.bits(trainer), trainer.state.host.history.rows


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_how_often_a_run_saves_changes_no_bit(tmp_path, num_replicas):
  first, first_rows = finished(tmp_path, num_replicas, 10)
  second, second_rows = finished(tmp_path, num_replicas, 15)
  assert first == second
  assert first_rows == second_rows
