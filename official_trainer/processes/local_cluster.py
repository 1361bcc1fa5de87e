"""A cluster of real processes on this machine, for development and tests."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from official_trainer.processes.group import POLL_SECS, GroupProcess, Reaper
from official_trainer.processes.ports import ReservedPorts
from official_trainer.processes.verdict import End, exit_code

TRAINER = (sys.executable, "-m", "official_trainer.train")

Task = tuple[str, int]


def _silent(text: str) -> None:
  del text


class LocalCluster:
  """Runs one and the same command line in several processes that differ in TF_CONFIG alone.

      with LocalCluster(workers=2, arguments=["--experiment=digits/cnn", ...]) as cluster:
        cluster.process("worker", 1).kill()
        code = cluster.wait(timeout=120)

  Without parameter servers the only job is `worker`, and worker 0 is the chief. With them there is one `chief`, the
  coordinator. An evaluator is no member of the cluster that the others see. Leaving the block kills what still runs.
  No process outlives this one, also where this one is killed.
  """

  def __init__(
    self,
    *,
    workers: int,
    ps: int = 0,
    evaluator: bool = False,
    arguments: Sequence[str] = (),
    program: Sequence[str] = TRAINER,
    log_dir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    grace_secs: float = 60.0,
    say: Callable[[str], None] = _silent,
    show: Callable[[str], None] | None = None,
  ):
    """Takes the ports; starts nothing.

    Args:
      workers: number of workers.
      ps: number of parameter servers.
      evaluator: whether there is an evaluator beside the cluster.
      arguments: given to the program in every process.
      program: the command before its arguments.
      log_dir: folder of a log for each process; None for a new temporary one.
      env: environment variables over those of this process.
      grace_secs: how long `wait` lets the others live after the job is over or cannot go on.
      say: told each start and end of a process.
      show: told what the chief writes, while `wait` waits.
    """
    if workers < 1 or ps < 0:
      raise ValueError(f"A cluster needs at least one worker, got {workers} workers and {ps} parameter servers.")
    jobs = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
    self.log_dir = Path(log_dir) if log_dir is not None else Path(tempfile.mkdtemp(prefix="official-trainer-logs-"))
    self._command = [*program, *arguments]
    self._env = {"GCE_METADATA_IP": "127.0.0.1:9", "PYTHONUNBUFFERED": "1", **os.environ, **(env or {})}
    self._grace_secs = grace_secs
    self._say = say
    self._show = show
    self._reserved = ReservedPorts(sum(jobs.values()))
    ports = iter(self._reserved.ports)
    self.cluster_spec = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
    self.tasks: list[Task] = [(job, index) for job, count in jobs.items() for index in range(count)]
    if evaluator:
      self.tasks.append(("evaluator", 0))
    self.chief: Task = self.tasks[0]
    self._reaper: Reaper | None = None
    self._processes: dict[Task, GroupProcess] = {}
    self._ends: dict[Task, End] = {}
    self._over_since: float | None = None
    self._was_stopped = False
    self._shown_bytes = 0

  def __enter__(self) -> LocalCluster:
    self.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self.close()

  def start(self, job: str | None = None, index: int = 0) -> None:
    """Starts one process, again if it has ended; or without arguments every process that does not run."""
    self._over_since, self._was_stopped = None, False
    for task in self.tasks if job is None else [(job, index)]:
      if job is None and self._is_running(task):
        continue
      self._start(task)

  def process(self, job: str, index: int = 0) -> GroupProcess:
    """Returns the process of a task that was started: the newest one."""
    return self._processes[job, index]

  def processes(self) -> list[GroupProcess]:
    """Returns the newest process of every task."""
    return list(self._processes.values())

  def pids(self) -> list[int]:
    """Returns the ids of the processes that run. Each is the leader of a group of its own."""
    return [process.pid for process in self.processes() if process.poll() is None]

  def wait(self, timeout: float | None = None) -> int:
    """Waits until all have ended, and returns the exit code of the cluster (see `verdict.exit_code`).

    Once the job is over, or cannot go on, what still runs has `grace_secs` to end; then it is killed. An evaluator
    is waited for if the chief has ended well.

    Raises:
      TimeoutError: after `timeout` seconds, with the end of the log of each process that still runs. They go on.
    """
    began = time.monotonic()
    while self._look():
      now = time.monotonic()
      if self._over_since is not None and now - self._over_since > self._grace_secs:
        self._kill_late()
      if timeout is not None and now - began > timeout:
        raise TimeoutError(f"The cluster still runs after {timeout} s.\n{self._logs_of_running()}")
      time.sleep(POLL_SECS)
    return exit_code(list(self._ends.values()))

  def stop(self, number: int) -> None:
    """Passes a signal on to every process. They have `grace_secs` from now on."""
    for process in self.processes():
      process.send_signal(number)
    self._over_since, self._was_stopped = self._over_since or time.monotonic(), True

  def kill(self) -> None:
    """Kills every process, and waits for their end."""
    for process in self.processes():
      process.kill()
    for process in self.processes():
      process.wait()

  def close(self) -> None:
    """Kills every process and gives the ports back."""
    self.kill()
    if self._reaper is not None:
      self._reaper.close()
      self._reaper = None
    self._reserved.close()

  def _start(self, task: Task) -> None:
    job, index = task
    if task not in self.tasks:
      raise ValueError(f"must be one of {self.tasks}, got {task}.")
    if self._is_running(task):
      raise ValueError(f"{job} {index} still runs: end it before it is started again.")
    self.log_dir.mkdir(parents=True, exist_ok=True)
    config = {"cluster": self.cluster_spec, "task": {"type": job, "index": index}}
    self._reaper = self._reaper or Reaper()
    log = self.log_dir / f"{job}-{index}.log"
    if task == self.chief:
      self._shown_bytes = log.stat().st_size if log.exists() else 0
    self._processes[task] = self._reaper.start(
      self._command, env={**self._env, "TF_CONFIG": json.dumps(config)}, log=log
    )
    self._ends.pop(task, None)
    self._say(f"{job} {index} started: process {self._processes[task].pid}, {log}")

  def _look(self) -> bool:
    """Notes who has ended and whether the job is over. Returns whether any process runs."""
    # What was written before an end is seen: the output is looked at after the end was.
    running = [task for task in self.tasks if self._is_running(task)]
    self._show_output()
    for task, process in self._processes.items():
      if process.returncode is not None and task not in self._ends:
        self._ends[task] = End(*task, process.returncode)
        self._say(f"{task[0]} {task[1]} ended with code {process.returncode} after {process.secs:.1f} s")
    if running and self._over_since is None and (reason := self._reason_to_end()):
      self._over_since = time.monotonic()
      self._say(f"{reason}: the others have {self._grace_secs:g} s to end")
    return bool(running)

  def _reason_to_end(self) -> str | None:
    """Says why nothing more is to be waited for; None while the job goes on."""
    with_servers = "ps" in self.cluster_spec
    if self.chief in self._ends:
      return f"{self.chief[0]} {self.chief[1]} has ended"
    if with_servers and all(task in self._ends for task in self.tasks if task[0] == "worker"):
      return "no worker is left"
    # With parameter servers one worker may be lost: the others do its work.
    spared = ("worker", "evaluator") if with_servers else ("evaluator",)
    for end in self._ends.values():
      if end.code and end.job not in spared:
        return f"{end.job} {end.index} is lost"
    return None

  def _kill_late(self) -> None:
    # After a good end the evaluator looks at the last checkpoint, which takes as long as it takes.
    chief = self._ends.get(self.chief)
    spared = ("evaluator",) if chief and not chief.code and not self._was_stopped else ()
    for task, process in self._processes.items():
      if task[0] not in spared and self._is_running(task):
        process.kill()
        self._ends[task] = End(*task, process.wait(), was_late=True)
        self._say(f"{task[0]} {task[1]} had not ended and was killed")

  def _show_output(self) -> None:
    if self._show is None or self.chief not in self._processes:
      return
    path = self._processes[self.chief].log_path
    with path.open("rb") as file:
      file.seek(self._shown_bytes)
      new = file.read()
    self._shown_bytes += len(new)
    if new:
      self._show(new.decode("utf-8", errors="replace"))

  def _is_running(self, task: Task) -> bool:
    process = self._processes.get(task)
    return process is not None and process.poll() is None

  def _logs_of_running(self) -> str:
    def lines() -> Iterator[str]:
      for task, process in self._processes.items():
        if self._is_running(task):
          yield f"{process.log_path} ends:\n{process.log()}"

    return "\n".join(lines())
