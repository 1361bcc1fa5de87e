"""Batches of the training stream that are left out.

Batches are numbered as they come: in a run that leaves nothing out, the update from step s to step s + 1 uses batch s.
Windows of numbers are left out by stepping over them, so that later batches move up:

    left out: [[3, 5]]       step     0  1  2  3  4  5
                             batch    0  1  2  5  6  7
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class SkippedBatches:
  """Which batches are left out, and which batch each step uses therefore.

  Attributes:
    windows: (first, end) of each window of batch numbers, `end` itself not included; sorted, and apart from each other.
  """

  windows: tuple[tuple[int, int], ...] = ()

  @classmethod
  def of(cls, windows: Iterable[Sequence[int]]) -> SkippedBatches:
    """Returns these windows, joined where they touch or overlap.

    Raises:
      ValueError: if a window is empty, or begins before batch 0.
    """
    joined: list[tuple[int, int]] = []
    for first, end in sorted((int(first), int(end)) for first, end in windows):
      if first < 0 or end <= first:
        raise ValueError(f"A window of batches needs 0 <= first < end, got [{first}, {end}].")
      if joined and first <= joined[-1][1]:
        joined[-1] = (joined[-1][0], max(joined[-1][1], end))
      else:
        joined.append((first, end))
    return cls(tuple(joined))

  def joined(self, windows: Iterable[Sequence[int]]) -> SkippedBatches:
    """Returns what is left out when `windows` are left out as well."""
    return SkippedBatches.of([*self.windows, *windows])

  def batch_of(self, step: int) -> int:
    """Returns the number of the batch that the update after `step` completed ones uses."""
    batch = step
    for first, end in self.windows:
      if batch < first:
        break
      batch += end - first
    return batch

  def batches_of(self, steps: tf.Tensor) -> tf.Tensor:
    """Returns `batch_of` of each step, int64 of the shape of `steps`, in a graph."""
    batches = steps
    for first, end in self.windows:  # Each looks at what the ones before have made of the step.
      batches += tf.where(batches >= first, tf.constant(end - first, tf.int64), tf.constant(0, tf.int64))
    return batches

  def window_of(self, start: int, end: int) -> tuple[int, int]:
    """Returns the window that holds the batches which the updates from step `start` to step `end` use."""
    return self.batch_of(start), self.batch_of(end - 1) + 1

  def num_between(self, first: int, end: int) -> int:
    """Returns how many of the batches `first`, ..., `end` - 1 are left out."""
    return sum(max(0, min(end, window[1]) - max(first, window[0])) for window in self.windows)


NONE_SKIPPED = SkippedBatches()
