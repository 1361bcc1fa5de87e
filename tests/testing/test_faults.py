"""Each fault bites where it says, and nowhere else."""

import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.run import session as session_module
from official_trainer.stop import StopRequest
from official_trainer.testing import differences, faults
from official_trainer.trainer import Trainer
from tests import small_tasks, tiny

WAIT_SECS = 120


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)


class Watching(tiny.TinyTask):
  """Puts the mean of every batch of features into the model's state."""

  def build_model(self):
    model = super().build_model()
    model.seen = tf.Variable(tf.zeros([20]), trainable=False)
    model.at = tf.Variable(0, trainable=False)
    return model

  def train_step(self, inputs, model, **kwargs):
    model.seen.scatter_nd_update([[model.at]], [tf.reduce_mean(inputs[0])])
    model.at.assign_add(1)
    return super().train_step(inputs, model, **kwargs)


LOOPS = {
  "compiled loop": {},
  "compiled step": {"train_tf_while_loop": False},
  "eager": {"train_tf_while_loop": False, "train_tf_function": False},
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("stop", [False, True])
def test_a_crash_comes_at_exactly_its_step_in_the_middle_of_a_loop(tmp_path, loop, stop):
  built = tiny.build(tmp_path, mode="train", stop=StopRequest() if stop else None, steps_per_loop=4, **loop)
  with pytest.raises(faults.SimulatedCrash, match="a crash on purpose after step 3"), faults.crash_at(3) as fault:
    built.run()
  assert built.state.step == 3
  assert fault.happened == 1


@pytest.mark.parametrize("loop", [{}, {"eval_tf_while_loop": True, "validation_steps": 2}, {"eval_tf_function": False}])
def test_a_crash_comes_in_the_evaluation_of_its_step(tmp_path, loop):
  built = tiny.build(tmp_path, **tiny.BEST, ema=tiny.EmaConfig(average_decay=0.9), **loop)
  with pytest.raises(faults.SimulatedCrash), faults.crash_at(4, during="evaluation") as fault:
    built.run()
  assert fault.happened == 1
  assert (tiny.steps_of(tmp_path, "train"), tiny.steps_of(tmp_path, "validation")) == ([2, 4], [2])
  with pytest.raises(faults.FaultDidNotHappen, match=r"crash_at\(5, during='evaluation'\).*Nothing was evaluated at"):
    with faults.crash_at(5, during="evaluation"):
      tiny.build(tmp_path, **tiny.BEST, ema=tiny.EmaConfig(average_decay=0.9)).run()


def test_a_crash_is_not_taken_for_an_error_that_can_be_handled():
  assert not issubclass(faults.SimulatedCrash, Exception)


def test_other_errors_of_the_loop_stay_what_they_are(tmp_path):
  class Failing(tiny.TinyTask):
    def train_step(self, inputs, model, **kwargs):
      tf.debugging.assert_equal(tf.reduce_sum(inputs[0]), 1e9, "not that")
      return super().train_step(inputs, model, **kwargs)

  with pytest.raises(tf.errors.InvalidArgumentError, match="not that"), faults.crash_at(3):
    tiny.build(tmp_path, mode="train", task_class=Failing).run()


def test_a_fault_that_never_came_is_an_error(tmp_path):
  with pytest.raises(faults.FaultDidNotHappen, match=r"crash_at\(6\) did not happen.*at the last one"):
    with faults.crash_at(6):
      tiny.build(tmp_path, mode="train").run()
  built = tiny.build(tmp_path / "again", mode="train", train_steps=2)
  built.run()
  with pytest.raises(faults.FaultDidNotHappen, match="compiled before the context"), faults.nan_at(3):
    built.trainer.train(tf.constant(2))


def test_outside_of_the_context_nothing_of_it_is_there(tmp_path):
  methods = ("create_train_loop_fn", "next_train_inputs", "train")
  before = [vars(Trainer).get(name) for name in methods]
  with pytest.raises(faults.SimulatedCrash), faults.crash_at(0):
    tiny.build(tmp_path / "a", mode="train").run()
  assert [vars(Trainer).get(name) for name in methods] == before
  built = tiny.build(tmp_path / "b", mode="train")
  built.run()
  assert "next_train_inputs" not in vars(built.trainer)


def test_a_trainer_that_outlives_the_context_goes_on_without_the_fault(tmp_path):
  built = tiny.build(tmp_path, mode="train")
  with faults.nan_at(0) as fault:
    built.trainer.train(tf.constant(1))
  built.state.global_step.assign(0)
  built.trainer.train(tf.constant(1))
  assert fault.happened == 1


def test_a_trainer_with_inputs_of_its_own_is_hit_as_well():
  class Own(Trainer):
    def next_train_inputs(self, iterator):
      batch = next(iterator)
      return batch._replace(inputs=(batch.inputs[0] * 2.0, batch.inputs[1]))

  trainer = small_tasks.build_trainer(trainer_class=Own)
  with pytest.raises(faults.SimulatedCrash), faults.crash_at(1):
    trainer.train(tf.constant(4))
  assert trainer.state.step == 1


def test_two_faults_can_be_open_at_once(tmp_path):
  built = tiny.build(tmp_path, mode="train", task_class=Watching, steps_per_loop=6, checkpoint_interval=6)
  with pytest.raises(faults.SimulatedCrash), faults.nan_at(1), faults.crash_at(4):
    built.run()
  assert np.flatnonzero(np.isnan(built.trainer.model.seen)).tolist() == [1]


# ---- NaN -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_nan_comes_into_the_inputs_of_one_update_only(tmp_path, loop):
  built = tiny.build(tmp_path, mode="train", task_class=Watching, recovery_max_trials=-1, **loop)
  with faults.nan_at(3) as fault:
    built.run()
  assert fault.happened == 1
  assert np.flatnonzero(np.isnan(built.trainer.model.seen)).tolist() == [3]


class RowsSeen(small_tasks.Regression):
  """Notes, for each update, how many rows with a NaN every replica got."""

  def __init__(self, params, **kwargs):
    super().__init__(params, **kwargs)
    self.found = []

  def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    bad = [tf.reduce_sum(tf.cast(tf.math.is_nan(part), tf.int32)) for part in inputs]

    def note(replica, *counts):
      if any(counts):
        self.found.append((int(replica), *(int(count) for count in counts)))

    tf.numpy_function(note, [replica, *bad], [])
    return super().train_step(inputs, model, optimizer, metrics, mask)


class PipelineRowsSeen(RowsSeen, small_tasks.PipelineRegression):
  pass


@pytest.mark.parametrize("task", [RowsSeen, PipelineRowsSeen])
@pytest.mark.parametrize("replica", [0, 1])
def test_nan_hits_the_examples_of_one_replica(logical_cpus, task, replica):
  trainer = small_tasks.build_trainer(small_tasks.experiment(batch_size=6), task=task, num_replicas=2)
  with faults.nan_at(1, replica=replica):
    trainer.train(tf.constant(3))
  # Three rows of three features and one target are this replica's.
  assert trainer.task.found == [(replica, 9, 3)]


def test_nan_hits_the_values_of_one_replica_of_a_distributed_dataset(logical_cpus):
  strategy = small_tasks.strategy_of(2)
  dataset = tf.data.Dataset.from_tensor_slices(small_tasks.rows(24)).batch(6).repeat()
  config = small_tasks.experiment(batch_size=6)
  trainer = small_tasks.build_trainer(
    config, task=RowsSeen, num_replicas=2, train_dataset=strategy.experimental_distribute_dataset(dataset)
  )
  with faults.nan_at(1, replica=1):
    trainer.train(tf.constant(3))
  assert trainer.task.found == [(1, 9, 3)]


def test_nan_in_a_replica_that_is_not_there_is_refused(logical_cpus):
  trainer = small_tasks.build_trainer(num_replicas=2)
  with pytest.raises(ValueError, match="there is no replica 2; the 2 are counted from 0"), faults.nan_at(1, replica=2):
    trainer.train(tf.constant(3))


def test_nan_in_inputs_without_floats_is_refused_with_what_to_do(tmp_path):
  class Whole(tiny.TinyTask):
    def build_source(self, params):
      features, labels = tiny.examples()
      return tiny.ArraySource(((features * 10).astype(np.int32), labels))

  with pytest.raises(ValueError, match=r"no floating-point tensor \(only int32\).*build_losses"), faults.nan_at(1):
    tiny.build(tmp_path, mode="train", task_class=Whole).run()


# ---- Time and signals ------------------------------------------------------------------------------------------------


def test_slow_input_waits_before_every_so_many_updates(tmp_path):
  slept = []
  with faults.slow_input(0.25, every=3, sleep=slept.append) as fault:
    tiny.build(tmp_path, mode="train", train_steps=7).run()
  assert slept == [0.25] * 3  # Before the updates after 0, 3 and 6.
  assert fault.happened == 3


def test_a_hang_blocks_in_the_loop_until_the_context_is_left(tmp_path):
  built = tiny.build(tmp_path, mode="train", steps_per_loop=6, checkpoint_interval=6)
  run = threading.Thread(target=built.run)
  with faults.hang_at(3) as fault:
    run.start()
    assert fault.reached.wait(WAIT_SECS)
    assert built.state.step == 3
    assert run.is_alive()
  run.join(WAIT_SECS)
  assert built.state.step == 6


def test_a_signal_comes_at_its_step(tmp_path):
  stop = StopRequest()
  before = signal.signal(signal.SIGUSR1, lambda *args: None)
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  pipe_before = signal.set_wakeup_fd(writer.fileno())
  try:
    built = tiny.build(tmp_path, mode="train", stop=stop)
    with faults.signal_at(3, signal.SIGUSR1) as fault:
      built.run()
    assert fault.happened == 1
    assert reader.recv(10) == bytes([signal.SIGUSR1])
  finally:
    signal.set_wakeup_fd(pipe_before)
    signal.signal(signal.SIGUSR1, before)
    reader.close()
    writer.close()


_KILLED = """
import sys
from official_trainer.testing import faults
from tests import tiny
with faults.kill_at(3):
  tiny.build(sys.argv[1], mode="train", steps_per_loop=6, checkpoint_interval=2).run()
"""


@pytest.mark.slow
def test_a_kill_leaves_the_process_no_moment(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", _KILLED, str(tmp_path / "run")], capture_output=True, timeout=WAIT_SECS, check=False
  )
  assert done.returncode == -signal.SIGKILL
  assert max(tiny.committed(tmp_path / "run"), default=0) <= 2
  for folder in ("run", "undisturbed"):
    tiny.build(tmp_path / folder, mode="train", steps_per_loop=6, checkpoint_interval=2).run()
  assert differences(tmp_path / "run", tmp_path / "undisturbed") == []


@pytest.mark.parametrize(
  "make, text",
  [
    (lambda: faults.crash_at(-1), "`step` of crash_at counts completed updates and must be at least 0, got -1"),
    (lambda: faults.nan_at(-1), "`step` of nan_at"),
    (lambda: faults.crash_at(1, during="saving"), "`during` must be 'training' or 'evaluation', got 'saving'"),
    (lambda: faults.slow_input(1.0, every=0), "`every` of slow_input must be at least 1"),
    (lambda: faults.signal_at(1, 15, times=0), r"`times` of signal_at\(1\) must be at least 1"),
  ],
)
def test_faults_that_could_not_happen_are_refused(make, text):
  with pytest.raises(ValueError, match=text), make():
    pass
