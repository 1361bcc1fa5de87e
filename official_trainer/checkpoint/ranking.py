"""Which weights a rule keeps: a function of the values so far, in their order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from official_trainer.checkpoint.best_folder import STEP_KEY, Record
from official_trainer.checkpoint.config import Ties
from official_trainer.checkpoint.nested_logs import lookup


def is_better(new: float, old: float | None, comparison: str, *, min_gain: float = 0.0, ties: Ties = "first") -> bool:
  """Says whether `new` replaces `old`. A value that is not finite never does, and is always replaced.

  Args:
    new: value of the newest evaluation.
    old: value of the best so far, or None.
    comparison: "higher" or "lower".
    min_gain: by how much it must be better.
    ties: whether an equal value replaces ("last") or not ("first").
  """
  if not math.isfinite(new):
    return False
  if old is None or not math.isfinite(old):
    return True
  gain = new - old if comparison == "higher" else old - new
  return gain >= min_gain and (gain > 0 or ties == "last")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
  """The order of records, and who is among the best of them.

  Attributes:
    metric_name: name among the evaluation's logs; "a|b" for nested logs.
    comparison: "higher" or "lower".
    top_k: how many are kept.
    min_gain: by how much a value must be better than the one whose place it takes.
    ties: whether the first or the last of equal values ranks higher.
  """

  metric_name: str
  comparison: str
  top_k: int = 1
  min_gain: float = 0.0
  ties: Ties = "first"

  def value(self, record: Record) -> float | None:
    """Returns the value that decides."""
    return lookup(record, self.metric_name)

  def with_candidate(self, kept: Sequence[Record], candidate: Record) -> list[Record] | None:
    """Returns what is kept once `candidate` was evaluated, best first; None if it is not among that.

    One that is evaluated again at its step takes the place of its former record, if it is strictly better.

    Args:
      kept: what was kept before, best first.
      candidate: the record of the newest evaluation.
    """
    value = self.value(candidate)
    kept = kept[: self.top_k]
    again = next((record for record in kept if record[STEP_KEY] == candidate[STEP_KEY]), None)
    if again is not None:
      enters = value is not None and is_better(value, self.value(again), self.comparison)
    elif len(kept) < self.top_k:
      enters = value is not None and math.isfinite(value)
    else:
      enters = value is not None and is_better(
        value, self.value(kept[-1]), self.comparison, min_gain=self.min_gain, ties=self.ties
      )
    if not enters:
      return None
    others = [record for record in kept if record is not again]
    place = next((i for i, record in enumerate(others) if self._ranks_above(candidate, record)), len(others))
    return [*others[:place], candidate, *others[place:]][: self.top_k]

  def with_later(self, kept: Sequence[Record], later: Iterable[Record]) -> list[Record]:
    """Returns what would be kept if the evaluations `later` were to come, in the order of their steps."""
    result = list(kept[: self.top_k])
    for record in sorted(later, key=lambda record: record[STEP_KEY]):
      result = self.with_candidate(result, record) or result
    return result

  def _ranks_above(self, candidate: Record, other: Record) -> bool:
    value = self.value(candidate)
    return value is not None and is_better(value, self.value(other), self.comparison, ties=self.ties)
