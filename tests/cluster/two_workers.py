"""Starts two workers of a MultiWorkerMirroredStrategy as real processes, and disturbs them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from official_trainer.processes.local_cluster import LocalCluster
from tests import network
from tests.kill.driver import last_step

LIMIT_SECS = 180
_OVERRIDES = "runtime.distribution_strategy=multi_worker_mirrored,runtime.cluster_timeout_secs=60"


def arguments(model_dir: Path, *overrides: str, experiment: str = "cluster/everything") -> list[str]:
  """Returns the arguments of every process."""
  return [
    f"--experiment={experiment}",
    "--experiment_module=tests.cluster.experiments",
    "--mode=train_and_eval",
    f"--model_dir={model_dir}",
    f"--params_override={','.join([_OVERRIDES, *overrides])}",
    "--allow_config_change=trainer.train_steps",
  ]


@contextlib.contextmanager
def started(model_dir: Path, *overrides: str, **kwargs: str) -> Iterator[LocalCluster]:
  """Runs two workers; fails if one of them connects to anything but this machine."""
  log_dir = model_dir.parent / f"{model_dir.name}-logs"
  with (
    LocalCluster(workers=2, arguments=arguments(model_dir, *overrides, **kwargs), log_dir=log_dir) as cluster,
    network.loopback_only(cluster.pids),
  ):
    yield cluster


def run_to_end(model_dir: Path, *overrides: str, **kwargs: str) -> list[str]:
  """Runs two workers to their end and returns what each has said, in order; raises if one fails."""
  with started(model_dir, *overrides, **kwargs) as cluster:
    code = cluster.wait(timeout=LIMIT_SECS)
    logs = [process.log(1 << 20) for process in cluster.processes()]
  if code:
    raise RuntimeError(f"the cluster ended with {code}:\n" + "\n".join(logs))
  return logs


def disturb(model_dir: Path, worker: int, number: int, *, step: int, delay_secs: float) -> tuple[list[int], float]:
  """Starts two workers and sends a signal to one, `delay_secs` after the history reaches `step`.

  Returns:
    The exit codes of both, and how many seconds after the signal the last one ended.
  """
  with started(model_dir) as cluster:
    began = time.monotonic()
    while last_step(model_dir) < step:
      if time.monotonic() - began > LIMIT_SECS or any(p.poll() is not None for p in cluster.processes()):
        raise RuntimeError(f"step {step} was not reached:\n" + "\n".join(p.log() for p in cluster.processes()))
      time.sleep(0.02)
    time.sleep(delay_secs)
    cluster.process("worker", worker).send_signal(number)
    sent = time.monotonic()
    cluster.wait(timeout=LIMIT_SECS)
    return [cluster.process("worker", index).returncode for index in (0, 1)], time.monotonic() - sent
