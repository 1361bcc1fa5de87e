"""Runs on parameter servers in real processes, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.processes.local_cluster import LocalCluster
from tests import network, tiny
from tests.parameter_servers.tasks import MOST_EXAMPLES
from tests.processes.programs import is_alive

pytestmark = pytest.mark.slow
LIMIT_SECS = 120
STEPS_A_CALL = 5


@contextlib.contextmanager
def cluster(folder: Path, *overrides: str, **settings) -> Iterator[LocalCluster]:
  """Runs a cluster; fails if a process of it connects to anything but this machine."""
  made = LocalCluster(
    workers=2,
    ps=1,
    arguments=[
      "--experiment=parameter_servers/counting",
      "--experiment_module=tests.parameter_servers.tasks",
      "--mode=train",
      f"--model_dir={folder}",
      "--quiet",
      f"--params_override=trainer.steps_per_closure={STEPS_A_CALL},{','.join(overrides)}",
    ],
    log_dir=folder / "logs",
    **settings,
  )
  with made as running, network.loopback_only(running.pids):
    yield running


def await_step(running: LocalCluster, folder: Path, step: int) -> None:
  """Waits until the history has reached a step; raises if the run ends before."""
  history, began = folder / "history.jsonl", time.monotonic()
  while not (history.exists() and any(json.loads(row)["step"] >= step for row in history.read_text().splitlines())):
    if running.process("chief").poll() is not None or time.monotonic() - began > LIMIT_SECS:
      pytest.fail(f"step {step} was not reached:\n{running.process('chief').log()}")
    time.sleep(0.02)


def value(folder: Path, step: int, name: str) -> np.ndarray:
  reader = tf.train.load_checkpoint(str(folder / f"ckpt-{step}"))
  (key,) = [key for key in reader.get_variable_to_shape_map() if name in key and "OPTIMIZER_SLOT" not in key]
  return reader.get_tensor(key)


def expected_counts(steps: int) -> np.ndarray:
  """How often each example is trained on when no batch is lost or repeated."""
  return np.bincount(np.arange(steps * tiny.BATCH_SIZE) % MOST_EXAMPLES, minlength=MOST_EXAMPLES)


def test_m5_a_worker_that_is_killed_and_started_again_costs_its_calls_only(tmp_path):
  steps = 4000
  with cluster(tmp_path, f"trainer.train_steps={steps}", "trainer.checkpoint_interval=4000") as running:
    await_step(running, tmp_path, 400)
    running.process("worker", 1).kill()
    running.process("worker", 1).wait()
    running.start("worker", 1)
    assert running.wait(LIMIT_SECS) == 0, running.process("chief").log()
    codes = {process.poll() for process in running.processes()}
  assert codes == {0}
  assert int(value(tmp_path, steps, "global_step")) == int(value(tmp_path, steps, "_iterations")) == steps
  repeated = value(tmp_path, steps, "counts") - expected_counts(steps)
  assert repeated.min() == 0, "a batch was lost"
  assert repeated.sum() <= STEPS_A_CALL * tiny.BATCH_SIZE
  last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])
  assert last["step"] == steps
  assert last["metrics"]["training_loss"] < 0.1


def test_a_lost_server_ends_the_run_which_goes_on_when_it_is_started_again(tmp_path):
  settings = ["trainer.train_steps=1200", "trainer.checkpoint_interval=400"]
  with cluster(tmp_path, *settings, evaluator=True) as running:
    await_step(running, tmp_path, 600)
    running.process("ps").kill()
    running.process("evaluator").kill()
    assert running.wait(LIMIT_SECS) == 42
    assert "PeerLost: ps 0 is gone" in running.process("chief").log()
    assert [running.process("worker", index).poll() for index in range(2)] == [42, 42]
    reached = committed_steps(str(tmp_path))[-1]
    assert reached >= 400
    running.start()
    assert running.wait(LIMIT_SECS) == 0, running.process("chief").log()
    assert {process.poll() for process in running.processes()} == {0}
  assert committed_steps(str(tmp_path))[-1] == 1200
  assert value(tmp_path, 1200, "counts").tolist() == expected_counts(1200).tolist()


def test_a_stop_of_all_saves_and_a_killed_coordinator_leaves_nobody_behind(tmp_path):
  settings = ["trainer.train_steps=100000", "trainer.checkpoint_interval=100000"]
  with cluster(tmp_path, *settings) as running:
    await_step(running, tmp_path, 200)
    running.stop(signal.SIGTERM)
    assert running.wait(LIMIT_SECS) == 42
    assert {process.poll() for process in running.processes()} == {42}
    step = committed_steps(str(tmp_path))[-1]
    assert step >= 200
    assert value(tmp_path, step, "counts").tolist() == expected_counts(step).tolist()
    running.start()
    await_step(running, tmp_path, step + 1)
    running.process("chief").kill()
    running.wait(LIMIT_SECS)
    assert {process.poll() for process in running.processes()} == {-signal.SIGKILL, 42}
    assert not any(map(is_alive, running.pids()))
