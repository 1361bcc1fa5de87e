"""A run with a tf.data service of its own, as a process."""

import signal
import subprocess
import sys

import pytest

from tests import network
from tests.processes import programs

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]


def test_a_run_that_is_asked_to_stop_leaves_no_data_worker(tmp_path):
  command = [
    *(sys.executable, "-m", "official_trainer.train"),
    *("--experiment=digits/cnn", "--mode=train", f"--model_dir={tmp_path}"),
    "--params_override=task.train_data.enable_tf_data_service=true,trainer.steps_per_loop=10,trainer.train_steps=9999",
  ]
  history = tmp_path / "history.jsonl"
  with (
    subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
    network.loopback_only(lambda: [process.pid]) as watch,
  ):
    programs.wait_until(lambda: history.exists() and history.stat().st_size > 0, limit_secs=120)
    workers = network.members([process.pid]) - {process.pid}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 42
  assert workers and watch.local
  programs.wait_until_gone(sorted(workers))
