"""Plain `tf.data` pipelines: run forward to where a run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.data.skipped import SkippedBatches

_PROBE_BATCHES = 8
_PROBE_SECS = 2.0
_SHORT_SECS = 10.0


def positioned(
  build: Callable[[], tf.data.Dataset], step: int, skipped: SkippedBatches, elements_a_step: int = 1
) -> tf.data.Dataset:
  """Returns a pipeline from the batch of the update after `step` completed ones on, without what is left out.

  Args:
    build: makes the pipeline, from its start.
    step: number of completed updates.
    skipped: batches that are left out.
    elements_a_step: elements that one update uses: one, or one for each replica.
  """
  batch = skipped.batch_of(step)
  dataset = skip_to(build, batch * elements_a_step)
  ahead = [(first, end) for first, end in skipped.windows if first > batch]
  if not ahead:
    return dataset

  def stays(number: tf.Tensor, element: Any) -> tf.Tensor:
    del element
    return tf.reduce_all([tf.logical_or(number < first, number >= end) for first, end in ahead])

  numbered = tf.data.Dataset.counter(batch * elements_a_step).map(lambda index: index // elements_a_step)
  kept = tf.data.Dataset.zip(numbered, dataset).filter(stays).map(lambda number, element: element)
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
    kept = kept.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
  return kept


def skip_to(
  build: Callable[[], tf.data.Dataset],
  steps: int,
  *,
  warn: Callable[[str], None] = logging.warning,
  clock: Callable[[], float] = time.monotonic,
) -> tf.data.Dataset:
  """Returns a pipeline without its first `steps` batches.

  That is where a run stopped, if the pipeline gives the same batches in the same order every time.

  tf.data makes most of what it skips. A few batches are timed, so that a long wait is announced. They are those of a
  second copy: taken from the pipeline itself they would change what it gives, since `shuffle` draws anew each time.

  Args:
    build: makes the pipeline, one element a step; it makes the same one each time.
    steps: elements to leave out.
    warn: told how long it may take, when that is long.
    clock: seconds.
  """
  if steps < 0:
    raise ValueError(f"A pipeline cannot be run backwards, got {steps} steps to skip.")
  if steps > _PROBE_BATCHES:
    secs = steps * _secs_a_batch(build(), clock)
    if secs >= _SHORT_SECS:
      warn(
        f"Skipping {steps} input batches to resume may take up to {_spoken(secs)}. To resume at "
        "once give the task a build_source(), or set train_data.resume=none to start the data over."
      )
  return build().skip(steps) if steps else build()


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
