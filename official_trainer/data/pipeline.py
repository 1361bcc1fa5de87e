"""Plain `tf.data` pipelines: run forward to where a run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

_PROBE_BATCHES = 8
_PROBE_SECS = 2.0
_SHORT_SECS = 10.0


def skip_to(
  dataset: tf.data.Dataset,
  steps: int,
  *,
  warn: Callable[[str], None] = logging.warning,
  clock: Callable[[], float] = time.monotonic,
) -> tf.data.Dataset:
  """Returns a pipeline without its first `steps` batches.

  That is where a run stopped, if the pipeline gives the same batches in the same order every time.

  tf.data makes most of what it skips. A few batches are timed, so that a long wait is announced.

  Args:
    dataset: one element a step.
    steps: elements to leave out.
    warn: told how long it may take, when that is long.
    clock: seconds.
  """
  if steps < 0:
    raise ValueError(f"A pipeline cannot be run backwards, got {steps} steps to skip.")
  if steps > _PROBE_BATCHES:
    secs = steps * _secs_a_batch(dataset, clock)
    if secs >= _SHORT_SECS:
      warn(
        f"Skipping {steps} input batches to resume may take up to {_spoken(secs)}. To resume at "
        "once give the task a build_source(), or set train_data.resume=none to start the data over."
      )
  return dataset.skip(steps)


def _secs_a_batch(dataset: tf.data.Dataset, clock: Callable[[], float]) -> float:
  """Returns the time of a batch once the pipeline is under way; 0 for one that ends at once."""
  iterator = iter(dataset)
  # The first one fills shuffle buffers and opens files.
  if next(iterator, None) is None:
    return 0.0
  start = clock()
  count = 0
  secs = 0.0
  while count < _PROBE_BATCHES and secs < _PROBE_SECS and next(iterator, None) is not None:
    count += 1
    secs = clock() - start
  return secs / max(count, 1)


def _spoken(secs: float) -> str:
  if secs < 120:
    return f"{secs:.0f} seconds"
  if secs < 7200:
    return f"{secs / 60:.0f} minutes"
  return f"{secs / 3600:.1f} hours"
