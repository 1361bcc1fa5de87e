"""Two workers that train in step, as real processes: stopped, killed and started again."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.testing.compare import differences
from tests.cluster import two_workers
from tests.kill.driver import last_step

pytestmark = pytest.mark.slow

TRAIN_STEPS = 120


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
  """Returns the folder of a run of two workers that nobody disturbed."""
  model_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
  two_workers.run_to_end(model_dir)
  return model_dir


def test_t4_only_the_chief_leaves_files(uninterrupted):
  files = sorted(path.name for path in uninterrupted.iterdir())
  assert not [name for name in files if "temp" in name]
  for mode in ("train", "validation"):
    assert len(list((uninterrupted / mode).glob("events.*"))) == 1
  assert committed_steps(str(uninterrupted))[-1] == TRAIN_STEPS
  history = (uninterrupted / "history.jsonl").read_text().splitlines()
  steps = [int(re.search(r'"step": (\d+)', row).group(1)) for row in history if '"mode": "train"' in row]
  assert steps == list(range(5, TRAIN_STEPS + 1, 5))


def test_a_job_that_is_stopped_and_started_again_begins_everywhere_at_the_same_step(uninterrupted, tmp_path):
  model_dir = tmp_path / "run"
  two_workers.run_to_end(model_dir, "trainer.train_steps=40")
  for index, log in enumerate(two_workers.run_to_end(model_dir, f"trainer.train_steps={TRAIN_STEPS}")):
    assert f"worker {index} of 2 begins at step 40, as all others do" in log
  assert differences(uninterrupted, model_dir) == []


def test_killed_at_random_moments_it_ends_with_the_bits_of_the_undisturbed_run(uninterrupted, tmp_path):
  model_dir, draw = tmp_path / "run", random.Random(4)
  for number in range(5):
    reached, victim = max(0, last_step(model_dir)), draw.randint(0, 1)
    # Not before it has gone on: while one process starts, the others wait for it, which is another test's business.
    step = reached + draw.randint(1, (TRAIN_STEPS - 10 - reached) // (5 - number))
    codes, secs = two_workers.disturb(model_dir, victim, signal.SIGKILL, step=step, delay_secs=draw.uniform(0.0, 0.2))
    print(f"worker {victim} killed after step {step}: {codes}, all ended {secs:.1f} s later")
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] == 42
    assert secs < 60
  two_workers.run_to_end(model_dir)
  assert differences(uninterrupted, model_dir) == []


def test_sigterm_to_one_worker_saves_once_for_all(uninterrupted, tmp_path):
  model_dir = tmp_path / "run"
  codes, _ = two_workers.disturb(model_dir, 1, signal.SIGTERM, step=20, delay_secs=0.1)
  assert codes == [42, 42]
  assert committed_steps(str(model_dir))[-1] >= last_step(model_dir)
  two_workers.run_to_end(model_dir)
  assert differences(uninterrupted, model_dir) == []


def test_an_error_of_one_worker_ends_the_other_which_names_it(tmp_path):
  model_dir = tmp_path / "run"
  with two_workers.started(model_dir, experiment="cluster/raising") as cluster:
    cluster.wait(timeout=two_workers.LIMIT_SECS)
    chief, other = cluster.process("worker", 0), cluster.process("worker", 1)
    assert other.returncode == 1
    assert "trouble of the second worker alone" in other.log(1 << 20)
    (bundle,) = (model_dir / "crashes").glob("step-*.json")
    assert str(bundle) in other.log(1 << 20)
    assert "trouble of the second worker alone" in bundle.read_text()
    assert chief.returncode == 42
    assert re.search(r"PeerLost: worker 1 is gone; started again, .* continues from step \d", chief.log(1 << 20))


def test_one_process_of_two_replicas_and_two_of_one_are_the_same_run(uninterrupted, tmp_path):
  arguments = two_workers.arguments(tmp_path / "run")
  replaced = "runtime.distribution_strategy=mirrored,runtime.num_virtual_devices=2"
  arguments = [replaced.join(a.split("runtime.distribution_strategy=multi_worker_mirrored")) for a in arguments]
  subprocess.run([sys.executable, "-m", "official_trainer.train", *arguments, "--quiet"], check=True)
  assert differences(uninterrupted, tmp_path / "run") == []


def test_one_file_is_shared_by_two_workers_and_each_example_counts_once(tmp_path):
  logs = two_workers.run_to_end(tmp_path / "run", experiment="cluster/tf_data")
  assert all("sharded by data: each process makes its rows of every global batch" in log for log in logs)
  seen = [re.findall(r"step (\d+) examples \[([\d ]+)\]", log) for log in logs]
  batches = {int(step): [int(n) for n in numbers.split()] for step, numbers in seen[0]}
  for step, numbers in seen[1]:
    batches[int(step)] += [int(n) for n in numbers.split()]
  assert [batches[step] for step in sorted(batches)] == [[(4 * step + i) % 20 for i in range(4)] for step in range(6)]
  # What the task gathers on the host: 20 examples in batches of 6, the last one of 2, over two workers.
  assert "num_on_host 20.00" in logs[0]
  assert "sum_on_host 190.0" in logs[0]


def test_the_best_weights_of_the_chief_can_be_loaded(uninterrupted):
  prefix = tf.train.latest_checkpoint(os.fspath(uninterrupted / "best_ckpt"))
  assert prefix is not None
  assert tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
