import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data import seeds as seeds_lib
from official_trainer.data import service as service_lib
from official_trainer.data.anchor import Anchor
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import IndexedInput
from official_trainer.data.local_service import LocalService
from official_trainer.data.service import DataService, ServedInput, connect, num_workers, served_pipeline
from official_trainer.data.skipped import SkippedBatches
from official_trainer.errors import ConfigError
from tests.processes import programs

BATCH_SIZE = 3
ANCHOR = Anchor.start(BATCH_SIZE)
PATH = "task.train_data"


def source():
  """Ten numbers, each with noise that depends on its place in the stream."""
  noisy = ArraySource((np.arange(10), np.arange(10, dtype=np.float32)))
  return noisy.augment(lambda batch, seeds: (batch[0], batch[1] + seeds_lib.uniform(seeds, 1)[:, 0]))


def indexed():
  return IndexedInput(source(), global_batch_size=BATCH_SIZE, seed=5, shuffle=True)


def taken(dataset, count):
  return [[part.numpy() for part in tf.nest.flatten(batch) if part is not None] for batch in dataset.take(count)]


def assert_same(batches, others):
  assert len(batches) == len(others)
  for one, two in zip(batches, others, strict=True):
    assert [part.tobytes() for part in one] == [part.tobytes() for part in two]


def settings(**changes):
  return DataConfig(enable_tf_data_service=True, global_batch_size=BATCH_SIZE, **changes)


@pytest.fixture(scope="module")
def pairs():
  """Two dispatchers with a worker each."""
  local = LocalService(num_dispatchers=2, num_workers=2)
  yield local
  local.close()


@pytest.fixture(scope="module")
def shared():
  """One dispatcher with two workers."""
  local = LocalService(num_dispatchers=1, num_workers=2)
  yield local
  local.close()


def of(local, *, is_ordered=False, **changes):
  return DataService(settings(**changes), local.addresses, is_ordered=is_ordered, local=local)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize("options", [{}, {"multiple": 4}, {"skipped": SkippedBatches.of([(2, 4), (9, 10)])}])
def test_several_workers_give_a_sources_batches_in_order_bit_for_bit(pairs, step, options):
  served = ServedInput(indexed(), of(pairs, is_ordered=True))
  assert served.exact and "(exact" in served.position
  dataset = served.dataset(step, ANCHOR, **options)
  assert dataset.element_spec == indexed().dataset(step, ANCHOR, **options).element_spec
  assert_same(taken(dataset, 13), taken(indexed().dataset(step, ANCHOR, **options), 13))


@pytest.mark.slow
def test_an_address_with_one_worker_is_read_in_order_and_one_with_two_is_not(pairs, shared):
  ordered = connect(settings(tf_data_service_address=",".join(pairs.addresses)), PATH, source=source())
  assert ordered.is_ordered and ordered.addresses == pairs.addresses
  assert_same(taken(ServedInput(indexed(), ordered).dataset(2, ANCHOR), 6), taken(indexed().dataset(2, ANCHOR), 6))

  unordered = connect(settings(tf_data_service_address=shared.addresses[0]), PATH, source=source())
  served = ServedInput(indexed(), unordered)
  assert not served.exact and "no fixed order" in served.position
  given = sorted(repr(batch) for batch in taken(served.dataset(2, ANCHOR), 40))
  assert len(set(given)) == 40  # Each batch once.
  possible = {repr(batch) for batch in taken(indexed().dataset(2, ANCHOR), 80)}
  assert set(given) <= possible

  named = settings(tf_data_service_address=pairs.addresses[0], tf_data_service_job_name="job")
  assert not connect(named, PATH, source=source()).is_ordered
  both = ",".join([pairs.addresses[0], shared.addresses[0]])
  with pytest.raises(ConfigError, match=r"names 2 dispatchers, with \[1, 2\] workers"):
    connect(settings(tf_data_service_address=both), PATH, source=source())


@pytest.mark.slow
def test_the_workers_of_a_dispatcher_are_counted(pairs, shared):
  assert [num_workers(address, "p") for address in (*pairs.addresses, *shared.addresses)] == [1, 1, 2]


def numbers():
  return tf.data.Dataset.range(100).batch(BATCH_SIZE)


@pytest.mark.slow
def test_workers_that_share_a_pipeline_give_each_element_once(shared):
  params = settings()
  batches = list(served_pipeline(numbers, of(shared), params)())
  assert sorted(np.concatenate(batches).tolist()) == list(range(100))


@pytest.mark.slow
def test_before_batching_only_the_last_batch_is_a_partial_one(shared):
  params = settings(apply_tf_data_service_before_batching=True)
  batches = list(served_pipeline(numbers, of(shared), params)())
  assert [len(batch) for batch in batches] == [3] * 33 + [1]
  assert sorted(np.concatenate(batches).tolist()) == list(range(100))


@pytest.mark.slow
def test_without_sharding_every_worker_gives_every_element(shared):
  params = settings(sharding=False)
  batches = list(served_pipeline(numbers, of(shared), params)())
  assert sorted(np.concatenate(batches).tolist()) == sorted([*range(100), *range(100)])
  assert "every element" in service_lib.pipeline_position(params)


# With one worker. What two workers have ready when a trainer asks is a matter of time.
@pytest.mark.slow
def test_trainers_that_share_a_service_get_the_same_batches():
  local = LocalService(num_dispatchers=1, num_workers=1, warn=lambda text: None)
  given = []
  for trainer in ("a", "b"):
    params = {
      "enable_shared_tf_data_service_between_parallel_trainers": True,
      "tf_data_service_job_name": "shared",
      "tf_data_service_address": local.addresses[0],
      "trainer_id": trainer,
    }
    served = ServedInput(indexed(), of(local, **params))
    assert not served.exact
    given.append([repr(batch) for batch in taken(served.dataset(0, ANCHOR), 20)])
  local.close()
  assert len(set(given[0])) == 20
  assert given[0] == given[1]


def slow_numbers():
  # Slow enough that a worker is in the middle of its work when it is killed.
  return tf.data.Dataset.range(60).map(
    lambda index: index + tf.cast(0 * tf.reduce_sum(tf.random.stateless_normal([1000, 300], [1, index])), tf.int64)
  )


@pytest.mark.slow
def test_a_finite_set_ends_though_a_worker_is_killed_and_gives_nothing_twice():
  said = []
  local = LocalService(num_dispatchers=1, num_workers=2, warn=said.append)
  given = []
  for number in of(local).distribute(slow_numbers(), local.addresses[0], shares_work=True):
    given.append(int(number))
    if len(given) == 10:
      os.kill(local.pids()[1], signal.SIGKILL)
  local.close()
  assert len(set(given)) == len(given)
  assert 50 <= len(given) <= 60  # What the lost worker had begun is lost.
  assert len(said) == 1 and "ended with code -9: it is started again" in said[0]


# The worker that is started again begins at the first batch: a run trained on the wrong batches without a word.
@pytest.mark.slow
def test_a_lost_worker_of_an_ordered_input_is_an_error_and_not_the_wrong_batches():
  local = LocalService(num_dispatchers=1, num_workers=1, warn=lambda text: None)
  numbered = iter(ServedInput(indexed(), of(local, is_ordered=True)).dataset(0, ANCHOR))
  expected = iter(indexed().dataset(0, ANCHOR))
  next(numbered), next(expected)
  os.kill(local.pids()[0], signal.SIGKILL)
  with pytest.raises(tf.errors.InvalidArgumentError, match="another batch than the next one: a data worker was lost"):
    for batch, other in zip(numbered, expected, strict=False):  # Some had been sent before.
      np.testing.assert_array_equal(batch.inputs[0], other.inputs[0])
  local.close()


def test_a_source_that_reads_through_python_is_refused():
  def read(batch):
    values = tf.py_function(lambda value: value, [batch], tf.float32)
    values.set_shape([None])
    return values

  through_python = ArraySource(np.arange(3, dtype=np.float32)).map(read)
  with pytest.raises(ConfigError, match=r"(?s)reads through Python.*cache_in_memory_mb"):
    connect(settings(), PATH, source=through_python)


@pytest.mark.slow
def test_something_that_listens_and_is_no_service_is_refused_in_bounded_time():
  # In a process of its own: the probe that is left behind would go on there for ever.
  with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    code = f"from official_trainer.data.service import num_workers; num_workers({address!r}, 'here', within_secs=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
  assert done.returncode == 1
  assert f"here: {address} accepts connections, but gave no element within 1 s" in done.stderr


OWNER = """
import sys
from official_trainer.data.local_service import LocalService
local = LocalService(num_dispatchers=1, num_workers=2)
print(*local.pids(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_no_worker_outlives_a_process_that_is_killed():
  command = [sys.executable, "-c", OWNER]
  with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(map(programs.is_alive, pids))
    owner.kill()
    owner.wait()
  programs.wait_until_gone(pids)


@pytest.mark.slow
def test_a_service_that_is_let_go_ends():
  local = LocalService(num_dispatchers=1, num_workers=1)
  pids = local.pids()
  del local
  programs.wait_until_gone(pids)
