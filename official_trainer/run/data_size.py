"""How many examples an epoch has, for durations in epochs: asked of a task before its trainer is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from official_trainer.config.durations import Data
from official_trainer.distribute.peers import Peers
from official_trainer.inner_loop.feed import build_alone, require_batch_size, require_files, settled
from official_trainer.task import Task


class DataSize:
  """Counts the examples of a task's data, if anybody asks.

  The chief counts and tells the others, so that all processes of a run have the same numbers of steps.
  """

  def __init__(self, build_task: Callable[[], Any], config: Any, seed: int, peers: Peers | None, recorded: int | None):
    """Stores its arguments.

    Args:
      build_task: makes a task to ask; it is thrown away, and so are the data that it has read.
      config: the task's config.
      seed: the run's seed.
      peers: the processes that ask together; None for one alone.
      recorded: the number of training examples at the first start of the run, which counts for all of it; or None.
    """
    self._build_task = build_task
    self._config = config
    self._seed = seed
    self._peers = peers
    self._recorded = recorded
    self.has_counted = False
    self.num_examples: int | None = None

  def train(self) -> int | None:
    """Returns the number of training examples; None where it is not known."""
    self.num_examples = self._agreed(lambda: self._recorded or self._count("train"))
    return self.num_examples

  def validation(self) -> int | None:
    """Returns the number of examples of the evaluation data; None where it is not known."""
    return self._agreed(lambda: self._count("validation"))

  def _agreed(self, count: Callable[[], int | None]) -> int | None:
    if self._peers is None:
      return count()
    mine = (count() or 0) if self._peers.is_chief else 0
    return self._peers.from_chief(mine) or None

  def _count(self, data: Data) -> int | None:
    self.has_counted = True
    task, path = self._build_task(), f"task.{data}_data"
    params = settled(getattr(self._config, f"{data}_data"), self._seed, is_training=data == "train")
    require_files(params, path)
    if isinstance(task, Task) and (size := task.count_examples(params)) is not None:
      return size
    require_batch_size(params, path)
    # A pipeline that ends is one epoch; of one that repeats nobody knows how long it is.
    num_batches = int(build_alone(task, params).cardinality())
    return num_batches * params.global_batch_size if num_batches > 0 else None
