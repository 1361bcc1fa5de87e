"""Checkpoints of a training process, as they appear to a process that evaluates them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.restoring import restore_exactly
from official_trainer.checkpoint.store import new_checkpoints
from official_trainer.errors import BrokenCheckpoint, CheckpointMismatch
from official_trainer.run.start import UNUSED_BY_EVALUATION
from official_trainer.state import TrainState
from official_trainer.stop import StopRequest

_POLL_SECS = 1.0


class CheckpointWatch:
  """Restores checkpoint after checkpoint into a state."""

  def __init__(
    self,
    state: TrainState,
    model_dir: str,
    *,
    final_step: int,
    timeout_secs: float | None,
    stop: StopRequest | None,
    warn: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Stores its arguments.

    Args:
      state: what is restored.
      model_dir: where the checkpoints appear.
      final_step: the step after which nothing more comes.
      timeout_secs: how long to wait for the next one, None for ever.
      stop: leaves the waiting when it is set.
      warn: shows a line.
      sleep: waits between two looks, in seconds.
      clock: returns seconds.
    """
    self._state = state
    self._model_dir = model_dir
    self._final_step = final_step
    self._timeout_secs = timeout_secs
    self._stop = stop
    self._warn = warn
    self._sleep = sleep
    self._clock = clock

  def __iter__(self) -> Iterator[int]:
    """Yields the step of each checkpoint once it is restored. Ends with the final one, or when none came for too long.

    Raises:
      Preempted: if a stop was asked for while waiting.
    """
    for step in new_checkpoints(self._model_dir, after=-1, poll=self._waiting()):
      prefix = manifest.checkpoint_prefix(self._model_dir, step)
      try:
        manifest.verify(prefix)
        restore_exactly(self._state.checkpoint, prefix, unused_roots=UNUSED_BY_EVALUATION)
      except (BrokenCheckpoint, CheckpointMismatch, tf.errors.OpError) as error:
        if tf.io.gfile.exists(manifest.manifest_path(prefix)):
          raise
        self._warn(f"{prefix} vanished while it was read ({error}); going on with the next one.")
        continue
      self._state.unpack()
      is_last = (
        step >= self._final_step or self._state.host.spent_secs is not None
      )  # No more time: none comes after it.
      self._state.host.clear()
      yield step
      self._waited_since = self._clock()
      if is_last:
        return

  def _waiting(self) -> Iterator[bool]:
    """Yields True after each wait, and ends when the time is over."""
    self._waited_since = self._clock()
    while self._timeout_secs is None or self._clock() - self._waited_since < self._timeout_secs:
      if self._stop is not None and self._stop.is_set:
        raise self._stop.preempted(self._state.step)
      self._sleep(_POLL_SECS)
      yield True
