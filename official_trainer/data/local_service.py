"""A tf.data service of the run's own: dispatchers in this process, each worker in one of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from official_trainer.processes.ports import ReservedPorts

READY_SECS = 120.0
_MOST_RESTARTS = 10

# Iterators tell their dispatcher that they are done, also those that Python lets go at its very end; TensorFlow warns
# where it is gone. It costs a few waiting threads: each is kept until then.
_DISPATCHERS: list[tf.data.experimental.service.DispatchServer] = []


class LocalService:
  """Dispatchers and workers that end with this process, however it ends.

  A worker that ends is started again at its address: a dispatcher then goes on with it, and does not wait for ever for
  what the lost one had begun.
  """

  def __init__(self, *, num_dispatchers: int, num_workers: int, warn: Callable[[str], None] = logging.warning):
    """Starts them. Worker w belongs to dispatcher w modulo `num_dispatchers`.

    Args:
      num_dispatchers: how many; as many as workers gives each worker a dispatcher of its own.
      num_workers: how many processes.
      warn: told when a worker was lost.

    Raises:
      RuntimeError: if a worker does not become ready.
    """
    service = tf.data.experimental.service
    servers = [service.DispatchServer(service.DispatcherConfig()) for _ in range(num_dispatchers)]
    _DISPATCHERS.extend(servers)
    self.addresses: list[str] = [server.target for server in servers]
    reserved = ReservedPorts(num_workers)
    self._workers = [
      _Worker(self.addresses[index % num_dispatchers].partition("://")[2], port, warn)
      for index, port in enumerate(reserved.ports)
    ]
    # Runs when this object is let go, and at the latest when Python ends.
    self.close = weakref.finalize(self, _close, self._workers, reserved)
    for worker in self._workers:
      worker.begin()
    for worker in self._workers:
      worker.wait_until_ready()

  def pids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return [worker.pid for worker in self._workers]


class _Worker:
  """One worker process, and the thread that starts it again."""

  def __init__(self, dispatcher: str, port: int, warn: Callable[[str], None]):
    self._command = [sys.executable, "-m", "official_trainer.data.service_worker", dispatcher, str(port)]
    self._name = f"localhost:{port}"
    self._warn = warn
    self._lock = threading.Lock()
    self._is_closed = False
    self._process: subprocess.Popen[bytes] | None = None

  @property
  def pid(self) -> int:
    return self._process.pid if self._process else 0

  def begin(self) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # It computes on the CPU, and finds what this process finds.
    env |= {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

  def wait_until_ready(self) -> None:
    process = self._process
    readable, _, _ = select.select([process.stdout], [], [], READY_SECS)
    if not readable or process.stdout.readline() != b"ready\n":
      self.close()
      raise RuntimeError(f"The tf.data service's worker {self._name} was not ready within {READY_SECS:g} s.")
    threading.Thread(target=self._watch, name=f"tf.data worker {self._name}", daemon=True).start()

  def close(self) -> None:
    with self._lock:
      self._is_closed = True
      if self._process is not None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

  def _watch(self) -> None:
    for _ in range(_MOST_RESTARTS):
      code = self._process.wait()
      with self._lock:
        if self._is_closed:
          return
        self._warn(f"The tf.data service's worker {self._name} ended with code {code}: it is started again.")
        self._process.stdin.close()
        self._process.stdout.close()
        self.begin()
    self._warn(f"The tf.data service's worker {self._name} was started {_MOST_RESTARTS} times, and is left alone now.")


def _close(workers: list[_Worker], reserved: ReservedPorts) -> None:
  for worker in workers:
    worker.close()
  reserved.close()
