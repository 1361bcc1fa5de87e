"""Writes down what happened when a run diverges, fails or hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer import crash
from official_trainer.errors import (
  BrokenCheckpoint,
  CheckpointMismatch,
  ConfigError,
  ExitCode,
  NotWritten,
  PeerLost,
  Preempted,
  TrainingDiverged,
)
from official_trainer.timing.phases import Phase
from official_trainer.trainer import Trainer

# Errors that say all there is to say about themselves.
_SELF_EXPLAINING = (ConfigError, Preempted, CheckpointMismatch, BrokenCheckpoint, NotWritten, PeerLost)
# A disk that hangs may be why the run does: the process must end nevertheless.
_LAST_SECS = 30.0


class CrashReports:
  """Makes the bundles of one run (`crash.CrashBundle`)."""

  def __init__(
    self,
    trainer: Trainer,
    model_dir: str | None,
    facts: Mapping[str, Any],
    *,
    warn: Callable[[str], None],
    leave: Callable[[int], None] = os._exit,
  ):
    """Stores its arguments.

    Args:
      trainer: the trainer of the run.
      model_dir: where the bundles go; None for nowhere.
      facts: what every manifest records.
      warn: shows a line.
      leave: ends the process with a code.
    """
    self._trainer = trainer
    self._model_dir = model_dir
    self._facts = facts
    self._warn = warn
    self._leave = leave

  def diverged(self, error: TrainingDiverged) -> None:
    """Writes the bundle of a divergence. Call while the state is still the diverged one."""
    self._write(kind="diverged", step=error.step, what=error.what, error=error, start=error.start)

  def failed(self, error: BaseException) -> None:
    """Writes the bundle of an error that ends the run, unless the error explains itself."""
    if isinstance(error, TrainingDiverged):
      self.diverged(error)
    elif isinstance(error, Exception) and not isinstance(error, _SELF_EXPLAINING):
      # TensorFlow begins with a line that says nothing.
      lines = [line for line in str(error).splitlines() if line.strip() and line.strip() != "Graph execution error:"]
      what = f"{type(error).__name__}: {lines[0] if lines else ''}"
      self._write(kind="error", step=self._trainer.state.step, what=what, error=error)

  def hung(self, phase: Phase, secs: float, step: int) -> None:
    """Shows all stacks, writes the bundle, and ends the process. Called from a thread of the watchdog.

    Args:
      phase: what the run was doing.
      secs: for how long nothing has moved.
      step: the last one that was seen: reading it now might hang as well.
    """
    what = f"nothing has moved for {secs:.0f} s in phase '{phase.value}' after step {step} (runtime.hang_secs)"
    main = "".join(traceback.format_stack(sys._current_frames()[threading.main_thread().ident]))  # noqa: SLF001
    print(f"hang: {what}. The main thread:\n{main}\nThe stacks of all threads:", file=sys.stderr, flush=True)
    # It shows a hundred threads and no more: the main one, the oldest, may be left out. A stream may be no file.
    with contextlib.suppress(ValueError, OSError):
      faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    last = threading.Timer(_LAST_SECS, self._leave, args=(int(ExitCode.HANG),))
    last.daemon = True
    last.start()
    self._write(kind="hang", step=step, what=what)
    last.cancel()
    self._leave(int(ExitCode.HANG))

  def _write(self, **values: Any) -> None:
    if self._model_dir is None:
      return
    try:
      bundle = crash.describe(
        rows=self._trainer.state.host.history.rows,
        facts=self._facts,
        model_dir=self._model_dir,
        skipped=self._trainer.skipped_batches.windows,
        **values,
      )
      path = bundle.save(self._model_dir)
    except (OSError, tf.errors.OpError) as problem:  # The error of the run says more than that of its report.
      logging.error("The crash bundle could not be written: %s", problem)
      return
    self._warn(f"what is known about it is in {path}; --mode=replay looks at the step again")
