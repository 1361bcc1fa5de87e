"""Which processes make a run, and which of them this one is."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.errors import ConfigError, Problem

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
_TASK_TYPES = (CHIEF, WORKER, PS, EVALUATOR)


class Role(enum.Enum):
  """What a process does in a run.

  TRAINER: trains, alone or together with its peers, all of which do the same. COORDINATOR: tells the workers of
  parameter servers what to do. SERVER: a worker or a parameter server, which does what the coordinator tells it.
  EVALUATOR: evaluates the checkpoints that the others write.
  """

  TRAINER = "trainer"
  COORDINATOR = "coordinator"
  SERVER = "server"
  EVALUATOR = "evaluator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
  """The processes of a run, by job, and this one's place.

  Attributes:
    jobs: task type -> addresses "host:port" of its tasks, by index. An evaluator need not be among them.
    task_type: "chief", "worker", "ps" or "evaluator".
    task_index: index among the tasks of its type.
  """

  jobs: Mapping[str, tuple[str, ...]]
  task_type: str
  task_index: int

  @property
  def name(self) -> str:
    """This process as people call it, e.g. "worker 1"."""
    return task_name(self.task_type, self.task_index)

  @property
  def address(self) -> str | None:
    """Where the others find this process; None for an evaluator that nobody needs to find."""
    tasks = self.jobs.get(self.task_type, ())
    return tasks[self.task_index] if self.task_index < len(tasks) else None

  @property
  def is_chief(self) -> bool:
    """Whether this process writes the run's folder: the chief, or the first worker where there is none."""
    return self.task_type == CHIEF or (self.task_type == WORKER and self.task_index == 0 and CHIEF not in self.jobs)

  @property
  def trainers(self) -> dict[str, tuple[str, ...]]:
    """The jobs whose processes train together when there are no parameter servers."""
    return {job: self.jobs[job] for job in (CHIEF, WORKER) if job in self.jobs}

  def others(self, *jobs: str) -> dict[str, str]:
    """Maps the names of the other processes of these jobs to their addresses."""
    named = {task_name(job, i): at for job in jobs for i, at in enumerate(self.jobs.get(job, ()))}
    return {name: at for name, at in named.items() if name != self.name}

  def role(self, strategy: str) -> Role:
    """Returns what this process does under a strategy of that name.

    Raises:
      ConfigError: if the cluster does not fit the strategy.
    """
    if self.task_type == EVALUATOR:
      return Role.EVALUATOR
    if strategy == "parameter_server":
      missing = [job for job in (CHIEF, WORKER, PS) if not self.jobs.get(job)]
      if missing:
        raise _unfit(f"parameter_server needs a chief, workers and parameter servers; no {' and no '.join(missing)}.")
      return Role.COORDINATOR if self.task_type == CHIEF else Role.SERVER
    if self.jobs.get(PS):
      raise _unfit(f"there are parameter servers, which {strategy!r} does not use. Set it to 'parameter_server'.")
    num_trainers = sum(map(len, self.trainers.values()))
    if strategy != "multi_worker_mirrored" and num_trainers > 1:
      raise _unfit(
        f"there are {num_trainers} processes to train, of which each would train by itself under {strategy!r}, into the"
        " same folder. Set it to 'multi_worker_mirrored'."
      )
    return Role.TRAINER


def cluster_of_hosts(worker_hosts: str, task_index: int) -> Cluster:
  """Returns the cluster of Model Garden's `runtime.worker_hosts` and `runtime.task_index`, which were checked."""
  hosts = tuple(host.strip() for host in worker_hosts.split(",") if host.strip())
  return Cluster(jobs={WORKER: hosts}, task_type=WORKER, task_index=task_index)


def cluster_of_tf_config(text: str) -> Cluster | None:
  """Reads the environment variable TF_CONFIG; None where it describes a single process.

  Args:
    text: JSON {"cluster": {job: [address, ...]}, "task": {"type": job, "index": i}}.

  Raises:
    ConfigError: everything that is wrong with it.
  """
  if not text.strip():
    return None
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise ConfigError.of("TF_CONFIG", f"is no JSON: {error}.") from error
  if problems := [Problem("TF_CONFIG", message) for message in _wrong_with(content)]:
    raise ConfigError(problems)
  jobs = {job: tuple(addresses) for job, addresses in content.get("cluster", {}).items() if addresses}
  task = content.get("task", {})
  if not jobs or (sum(map(len, jobs.values())) == 1 and task["type"] != EVALUATOR):
    return None
  return Cluster(jobs=jobs, task_type=task["type"], task_index=int(task.get("index", 0)))


def _wrong_with(content: Any) -> Iterator[str]:
  if not isinstance(content, dict) or not isinstance(content.get("cluster", {}), dict):
    yield 'must be of the form {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}.'
    return
  jobs = content.get("cluster", {})
  for job, addresses in jobs.items():
    if job not in _TASK_TYPES:
      yield f"names the job {job!r}; jobs are {', '.join(_TASK_TYPES)}."
    if not isinstance(addresses, list) or not all(isinstance(at, str) and ":" in at for at in addresses):
      yield f"must list the addresses of {job!r} as 'host:port', got {addresses!r}."
      return
  if len(jobs.get(CHIEF, ())) > 1:
    yield f"names {len(jobs[CHIEF])} chiefs; there is one."
  everybody = [address for addresses in jobs.values() for address in addresses]
  for address in sorted({at for at in everybody if everybody.count(at) > 1}):
    yield f"gives the address {address} to more than one process."
  if not jobs:
    return
  task = content.get("task")
  if not isinstance(task, dict) or task.get("type") not in _TASK_TYPES:
    kinds = ", ".join(_TASK_TYPES)
    yield f'must say which process this is, "task": {{"type": one of {kinds}, "index": i}}, got {task!r}.'
    return
  index, num = task.get("index", 0), len(jobs.get(task["type"], ()))
  if not str(index).isdigit():
    yield f"must give the index of this process as a number from 0, got {index!r}."
  elif task["type"] != EVALUATOR and int(index) >= num:
    yield f"says that this process is {task_name(task['type'], int(index))}, of which there are {num}."


def task_name(task_type: str, index: int) -> str:
  """Returns what people call a process: there is one chief, and any number of the others."""
  return CHIEF if task_type == CHIEF else f"{task_type} {index}"


def _unfit(message: str) -> ConfigError:
  return ConfigError.of("runtime.distribution_strategy", f"the cluster does not fit: {message}")
