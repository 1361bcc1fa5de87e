"""What one evaluation goes through: the validation set, then each named set, with the same metrics and weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.errors import ConfigError, Problem, gathered
from official_trainer.history import VALIDATION
from official_trainer.inner_loop.execution import LoopFn
from official_trainer.inner_loop.feed import Feed
from official_trainer.requirements import require_enough

VALIDATION_PATH = "task.validation_data"
_CONTINUES = "trainer.recreate_iterator_for_each_eval"


class EvaluationSet:
  """One set of data, and the loop over it, which is traced once.

  Attributes:
    name: its mode in the history: "validation", or the name of a named set.
    path: the key of its settings.
    feed: where its batches come from.
    dataset: what is iterated in each evaluation.
  """

  def __init__(self, name: str, path: str, feed: Feed, validation_steps: int, *, continues: bool = False):
    """Makes the dataset.

    Args:
      name: see above.
      path: see above.
      feed: see above.
      validation_steps: `trainer.validation_steps`.
      continues: whether an evaluation takes the batches after those of the one before.

    Raises:
      ConfigError: if there are fewer batches than an evaluation needs, or it cannot continue.
    """
    self.name = name
    self.path = path
    self.feed = feed
    self.dataset = feed.dataset(0)
    require_enough(feed.num_batches, validation_steps, path)
    if continues and not feed.exact:
      raise ConfigError.of(_CONTINUES, f"must be true: {path} was given as a dataset, which begins anew each time.")
    self._continues = continues
    self._loop: LoopFn | None = None

  def begin(self, num_before: int, num_steps: int) -> None:
    """Sets the dataset to where an evaluation begins.

    Args:
      num_before: evaluations before this one.
      num_steps: batches of an evaluation; -1 for all, which begin at the first one.
    """
    if self._continues:
      self.dataset = self.feed.dataset(max(num_steps, 0) * num_before)
      # Traced once, for datasets that go round and for the whole set, which ends.
      self.feed.endless = False

  def loop(self, make: Callable[[], LoopFn]) -> LoopFn:
    """Returns the loop over this set, made by `make` when it runs for the first time."""
    if self._loop is None:
      self._loop = make()
    return self._loop


class EvaluationSets:
  """The sets of one trainer, and the one that is evaluated at the time."""

  def __init__(self, validation: EvaluationSet, named: Mapping[str, EvaluationSet]):
    self.validation = validation
    self.named = dict(named)
    self.present = validation

  @property
  def names(self) -> list[str]:
    """The names of the named sets."""
    return list(self.named)

  @contextlib.contextmanager
  def evaluating(self, one: EvaluationSet) -> Iterator[None]:
    """Makes `one` the present set for the body."""
    before, self.present = self.present, one
    try:
      yield
    finally:
      self.present = before


def build_sets(
  validation: Callable[[str], Feed],
  named: Mapping[str, Callable[[str], Feed]],
  validation_steps: int,
  *,
  continues: bool,
) -> EvaluationSets:
  """Returns the sets of a trainer.

  Args:
    validation: makes the feed of the validation set, given the key of its settings.
    named: name -> function that makes its feed, likewise.
    validation_steps: `trainer.validation_steps`.
    continues: whether an evaluation takes the batches after those of the one before.

  Raises:
    ConfigError: all that is wrong with the sets.
  """
  builders = {VALIDATION: (VALIDATION_PATH, validation)}
  builders |= {name: (f"task.evaluation_sets.{name}", build) for name, build in named.items()}
  problems: list[Problem] = []
  sets = {}
  for name, (path, build) in builders.items():
    with gathered(problems):
      sets[name] = EvaluationSet(name, path, build(path), validation_steps, continues=continues)
  if problems:
    raise ConfigError(problems)
  return EvaluationSets(sets.pop(VALIDATION), sets)


def joined(logs: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the logs of the validation set with those of each named set nested under its name.

  Raises:
    ConfigError: if a set has the name of a metric.
  """
  for name in sets:
    if name in logs:
      raise ConfigError.of(
        f"task.evaluation_sets.{name}", f"'{name}' is the name of a metric of the evaluation. Rename the set."
      )
  return {**logs, **sets}


def parted(logs: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
  """Undoes `joined`: returns the logs of the validation set, and those of each named set that is there."""
  sets = {name: logs[name] for name in names if isinstance(logs.get(name), Mapping)}
  return {name: value for name, value in logs.items() if name not in sets}, sets
