"""When things happen. Pure functions of the step, on an absolute grid, so that a resumed run keeps the same steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cadence:
  """The intervals of a run, in completed updates.

  Attributes:
    train_steps: where training ends.
    steps_per_loop: reports (history rows) fall on its multiples.
    checkpoint_interval: checkpoints fall on its multiples.
    validation_interval: evaluations fall on its multiples; None for none during training.
    checkpoints_at: further steps at which a checkpoint is saved.
    first_loop_steps: where the first inner loop ends, with a report of its own; None for none.
    evaluates_first_loop: whether an evaluation falls there, if there are any during training.
  """

  train_steps: int
  steps_per_loop: int
  checkpoint_interval: int
  validation_interval: int | None = None
  checkpoints_at: Collection[int] = ()
  first_loop_steps: int | None = None
  evaluates_first_loop: bool = False

  def next_stop(self, step: int, further: Collection[int] = ()) -> int:
    """Returns the next step greater than `step` at which the inner loop must end for something to happen.

    Args:
      step: completed updates.
      further: more steps at which something happens that is none of a cadence's business.
    """
    intervals = [self.steps_per_loop, self.checkpoint_interval]
    if self.validation_interval is not None:
      intervals.append(self.validation_interval)
    stops = [(step // interval + 1) * interval for interval in intervals]
    stops += [at for at in (*self.checkpoints_at, *further, self.first_loop_steps or 0) if at > step]
    return min(self.train_steps, *stops)

  def reports(self, step: int) -> bool:
    """Says whether a report ends at `step`."""
    return step % self.steps_per_loop == 0 or step == self.first_loop_steps or step >= self.train_steps

  def saves(self, step: int) -> bool:
    """Says whether a checkpoint is due at `step`."""
    return step % self.checkpoint_interval == 0 or step in self.checkpoints_at or step >= self.train_steps

  def evaluates(self, step: int) -> bool:
    """Says whether an evaluation is due at `step`; not at step 0."""
    if self.validation_interval is None or step == 0:
      return False
    if self.evaluates_first_loop and step == self.first_loop_steps:
      return True
    return step % self.validation_interval == 0 or step >= self.train_steps
