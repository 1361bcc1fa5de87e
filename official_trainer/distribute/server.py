"""A process that computes for the coordinator: a worker, or a parameter server."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import tensorflow as tf
from absl import logging

from official_trainer.distribute.cluster import CHIEF, Cluster
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.coordinator_note import CoordinatorNote, load_note
from official_trainer.distribute.parameter_servers import cluster_spec
from official_trainer.distribute.rendezvous import answers, no_answer
from official_trainer.errors import ExitCode

_LOOK_SECS = 0.2
# So long a coordinator that did answer may not do so before it counts as lost.
_SILENCE_SECS = 10.0


def serve(config: RuntimeConfig, cluster: Cluster, model_dir: str) -> NoReturn:
  """Serves until the coordinator has ended, and ends the process with what that means for it.

  TensorFlow's server has no way to stop: the process ends without unwinding, after its output was flushed.

  Args:
    config: the runtime config.
    cluster: the processes of the run, and this one's place.
    model_dir: the run's folder, where the coordinator leaves a note.

  Raises:
    ConfigError: if no coordinator comes within `runtime.cluster_timeout_secs`.
  """
  watch = CoordinatorWatch(
    read=lambda: load_note(model_dir),
    answers=lambda: answers(cluster.jobs[CHIEF][0]),
    address=cluster.jobs[CHIEF][0],
    timeout_secs=config.cluster_timeout_secs,
    grace_secs=config.grace_secs,
  )
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: watch.asked(signal.Signals(number)))
  # Without it a lost process is waited for, for ever.
  os.environ["GRPC_FAIL_FAST"] = "use_caller"
  options = tf.compat.v1.ConfigProto()
  # A function that waits for another process keeps a thread.
  options.inter_op_parallelism_threads = max(4, (os.cpu_count() or 1) + 1)
  tf.distribute.Server(
    cluster_spec(cluster),
    job_name=cluster.task_type,
    task_index=cluster.task_index,
    protocol="grpc",
    config=options,
  )
  logging.info("%s serves at %s.", cluster.name, cluster.address)
  code = watch.wait()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


class CoordinatorWatch:
  """Finds out when the coordinator has ended, and with what."""

  def __init__(
    self,
    *,
    read: Callable[[], CoordinatorNote | None],
    answers: Callable[[], bool],
    address: str,
    timeout_secs: float,
    grace_secs: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
  ):
    """Reads the note that is there, which is an earlier start's.

    Args:
      read: returns the newest note.
      answers: says whether the coordinator can be reached.
      address: the coordinator's.
      timeout_secs: how long to wait for a coordinator.
      grace_secs: how long to serve on after a signal.
      clock: returns seconds.
      sleep: waits between two looks.
    """
    self._read = read
    self._answers = answers
    self._address = address
    self._timeout_secs = timeout_secs
    self._grace_secs = grace_secs
    self._clock = clock
    self._sleep = sleep
    self._before = read()
    self._ends_at: float | None = None
    self._code = ExitCode.RESTART

  def asked(self, number: signal.Signals) -> None:
    """Ends the wait `grace_secs` from now, or at once when asked again.

    A job that is stopped as a whole gets its signals all at once: without its servers the coordinator could not save.
    """
    now = self._clock()
    if self._ends_at is None:
      self._code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.RESTART
      self._ends_at = now + self._grace_secs
    else:
      self._ends_at = now

  def wait(self) -> ExitCode:
    """Returns what to exit with: what the coordinator ended with, or 42 where it is lost.

    Raises:
      ConfigError: if no coordinator came.
    """
    began = self._clock()
    heard: float | None = None
    ended: float | None = None
    while True:
      note, now = self._read(), self._clock()
      is_there = self._answers()
      heard = now if is_there else heard
      if note is not None and note != self._before and note.code is not None:
        ended = now if ended is None else ended
        # Until it is gone it tidies up, which takes its servers.
        if not is_there or now - ended > _SILENCE_SECS:
          return ExitCode(note.code)
      if self._ends_at is not None and now >= self._ends_at:
        return self._code
      if heard is not None and now - heard > _SILENCE_SECS:
        return ExitCode.RESTART
      if heard is None and now - began > self._timeout_secs:
        raise no_answer(f"the coordinator ({self._address})", self._timeout_secs)
      self._sleep(_LOOK_SECS)
