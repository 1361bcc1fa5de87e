"""What a probe says to a stack of software that trains: a job, its outcome, and the questions it may ask.

No TensorFlow here: the two stacks import it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SMALL = {
  "trainer.train_steps": 6,
  "trainer.steps_per_loop": 2,
  "trainer.summary_interval": 2,
  "trainer.checkpoint_interval": 2,
  "trainer.validation_interval": 2,
  "trainer.max_to_keep": 20,
  "trainer.optimizer_config.optimizer.type": "sgd",
  "trainer.optimizer_config.learning_rate.type": "constant",
  "trainer.optimizer_config.learning_rate.constant.learning_rate": 0.05,
}
"""Settings of every job unless it says otherwise: six steps with everything due at every second one."""

EMA = "trainer.optimizer_config.ema"
BEST_SCORE = {
  "trainer.best_checkpoint_export_subdir": "best_ckpt",
  "trainer.best_checkpoint_eval_metric": "score",
  "trainer.best_checkpoint_metric_comp": "higher",
}
"""Settings that export the weights of the highest `score`, which a job makes up for each step."""


class NotOffered(Exception):
  """The stack has no such feature; the text says which."""


class Crash(Exception):
  """Stands for whatever ends a process in the middle."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """One run of a tiny regression, the same for every stack.

  Attributes:
    config: dotted key -> value, over `SMALL`. The names are those that both stacks have.
    mode: "train", "eval", "train_and_eval" or "continuous_eval".
    num_examples: training examples; example i has the id i.
    num_validation: validation examples.
    batch_size: examples of a step, over all replicas.
    eval_batch_size: examples of an evaluation step, over all replicas.
    repeat: whether the training data go on for ever.
    file: a TFRecord file with the training examples, see `tiny_task.write_examples`; None for arrays in memory.
    shuffle: whether each epoch has an order of its own.
    seed: of the run.
    num_replicas: 1, or 2 for a mirrored strategy over logical CPUs.
    in_cluster: whether this process is one of several that train together, which TF_CONFIG names.
    layers: which model, see `tiny_task.LAYERS`.
    initial: the three weights of the "linear" model at step 0.
    extra_columns: further columns of each example, which the model does not look at.
    nan_ids: training examples whose features are NaN.
    nan_gradient_ids: training examples with a finite loss and a gradient that is NaN.
    on_train: called with the ids of each training batch, on each replica.
    on_eval: likewise for evaluation.
    on_read: called with the ids of training examples when they are decoded.
    score: step -> the metric "score" that an evaluation at this step reports.
    allowed_changes: keys in which a continued run may differ.
    checkpoint: what to start from or to evaluate, or None.
    clock: returns seconds, or None for the real clock.
  """

  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mode: str = "train_and_eval"
  num_examples: int = 20
  num_validation: int = 10
  batch_size: int = 4
  eval_batch_size: int = 4
  repeat: bool = True
  file: str | None = None
  shuffle: bool = False
  seed: int = 7
  num_replicas: int = 1
  in_cluster: bool = False
  layers: str = "linear"
  initial: Sequence[float] = (0.5, -0.25, 0.125)
  extra_columns: int = 0
  nan_ids: Sequence[int] = ()
  nan_gradient_ids: Sequence[int] = ()
  on_train: Callable[[np.ndarray], None] | None = None
  on_eval: Callable[[np.ndarray], None] | None = None
  on_read: Callable[[np.ndarray], None] | None = None
  score: Callable[[int], float] | None = None
  allowed_changes: Sequence[str] = ()
  checkpoint: str | None = None
  clock: Callable[[], float] | None = None

  def but(self, *, config: Mapping[str, Any] | None = None, **changes: Any) -> Job:
    """Returns a copy with some fields changed; settings are added to the ones there are."""
    return dataclasses.replace(self, config={**self.config, **(config or {})}, **changes)

  def settings(self) -> dict[str, Any]:
    """Returns all settings: dotted key -> value."""
    return {
      **SMALL,
      "task.train_data.global_batch_size": self.batch_size,
      "task.validation_data.global_batch_size": self.eval_batch_size,
      **self.config,
    }

  @property
  def train_steps(self) -> int:
    return self.settings()["trainer.train_steps"]

  @property
  def strategy(self) -> str:
    """The name of the distribution strategy, which both stacks share."""
    if self.in_cluster:
      return "multi_worker_mirrored"
    return "one_device" if self.num_replicas == 1 else "mirrored"


@dataclasses.dataclass(kw_only=True)
class Outcome:
  """What a job left behind in memory.

  Attributes:
    error: what ended it, or None.
    step: completed updates, -1 if it did not get as far as a trainer.
    updates: the optimizer's own count, -1 likewise.
    weights: the model's variables in their order.
    logs: those of the last evaluation.
    trained: the ids of each training batch.
    evaluated: the ids of each evaluation batch.
    eval_weights: step -> the model's variables during the evaluation of that step.
    traces: how often Python ran through a training or a validation step.
    said: what appeared on the terminal and in the log.
    trainer: the trainer itself.
  """

  error: BaseException | None = None
  step: int = -1
  updates: int = -1
  weights: list[np.ndarray] = dataclasses.field(default_factory=list)
  logs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trained: list[list[int]] = dataclasses.field(default_factory=list)
  evaluated: list[list[int]] = dataclasses.field(default_factory=list)
  eval_weights: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)
  traces: dict[str, int] = dataclasses.field(default_factory=dict)
  said: str = ""
  trainer: Any = None


class WorkerOutcome(NamedTuple):
  """How one of several processes ended.

  Attributes:
    returncode: its exit code; negative where a signal ended it, as where it had to be killed.
    said: what it wrote.
    outcome: what the job left behind in its memory; None if it never came to the end of the job.
  """

  returncode: int
  said: str
  outcome: Outcome | None


class WorkersRun(NamedTuple):
  """What processes left behind that trained together.

  Attributes:
    workers: in the order of their indices; the first is the chief.
    temporary_folders: names of the folders that they left in the place for temporary ones.
  """

  workers: list[WorkerOutcome]
  temporary_folders: list[str]


class Stack(abc.ABC):
  """One of the two trainers."""

  name: str

  @abc.abstractmethod
  def execute(self, folder: str, job: Job, outcome: Outcome) -> None:
    """Runs a job in `folder` as this stack's own command would, and fills in the outcome; raises what it raises."""

  @abc.abstractmethod
  def evaluate_untrained(self, folder: str, job: Job) -> Outcome:
    """Builds the trainer of a training job, and evaluates once without having trained."""

  @abc.abstractmethod
  def save_now(self, trainer: Any, prefix: str) -> None:
    """Writes a training checkpoint as this stack's own code does when it is asked for one at any moment."""

  @abc.abstractmethod
  def without_commit(self, folder: str, step: int) -> None:
    """Undoes the last act of a save: the files of the checkpoint stay, but nothing says that they are complete."""

  @abc.abstractmethod
  def failing_best_export(self) -> contextlib.AbstractContextManager[None]:
    """For the body: writing the weights of a new best raises Crash."""

  @abc.abstractmethod
  def as_command(self, run: Callable[[], None]) -> None:
    """Calls `run` and turns what it raises into an exit code, as this stack's own command does."""

  @abc.abstractmethod
  def parse(self, *, files: Sequence[str] = (), overrides: str = "", experiment: str | None = "default") -> Any:
    """Returns the config that files and overrides add up to; "default" is a registered experiment."""

  @abc.abstractmethod
  def undocumented_settings(self) -> list[str]:
    """Lists the settings of trainer, runtime and data that have no text."""

  def require_setting(self, key: str, feature: str) -> None:
    """Raises NotOffered where the config has no such dotted key."""
    node = self.parse()
    for part in key.split("."):
      if not hasattr(node, part):
        raise NotOffered(feature)
      node = getattr(node, part)

  def run_workers(self, folder: Any, job: Job) -> WorkersRun:
    """Runs a job in two processes of one replica each, on one folder. None of them outlives the call.

    When one has ended, the others have a minute to do so. The job is pickled.
    """
    from tests.faults import workers

    return workers.run(self.name, str(folder), job.but(in_cluster=True))

  def run(self, folder: Any, job: Job) -> Outcome:
    """Runs a job; what it raises is raised."""
    outcome = self.attempt(folder, job)
    if outcome.error is not None:
      raise outcome.error
    return outcome

  def attempt(self, folder: Any, job: Job) -> Outcome:
    """Runs a job; what it raises is in the outcome."""
    outcome = Outcome()
    with _listening() as said:
      try:
        self.execute(str(folder), job, outcome)
      except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, NotOffered):
          raise
        outcome.error = error
    outcome.said = said.getvalue()
    return outcome


def crash_before_batch(number: int) -> Callable[[np.ndarray], None]:
  """Returns an `on_train` that crashes the run when its batch `number`, counted from 0, is about to be used."""
  seen = [0]

  def crash(ids: np.ndarray) -> None:
    del ids
    if seen[0] == number:
      raise Crash(f"before batch {number}")
    seen[0] += 1

  return crash


@contextlib.contextmanager
def _listening() -> Iterator[io.StringIO]:
  """Collects what the body prints and logs."""
  said = io.StringIO()
  handler = logging.StreamHandler(said)
  logger = logging.getLogger("absl")
  logger.addHandler(handler)
  try:
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
      yield said
  finally:
    logger.removeHandler(handler)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Turns dotted keys into groups in groups."""
  result: dict[str, Any] = {}
  for key, value in settings.items():
    *groups, last = key.split(".")
    inner = result
    for group in groups:
      inner = inner.setdefault(group, {})
    inner[last] = value
  return result


def checkpoint_steps(folder: Any) -> list[int]:
  """Lists the steps of the checkpoints in a folder: those with an index file."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  found = [name.removeprefix("ckpt-").removesuffix(".index") for name in names if name.startswith("ckpt-")]
  return sorted(int(name) for name in found if name.isdigit())
