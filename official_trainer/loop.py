"""The outer loop: what happens around the inner loops, and when."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import orbit
import tensorflow as tf
from absl import logging

from official_trainer.actions.event import TRAIN, VALIDATION, Actions, Event, LoopDiscarded, scalars_of
from official_trainer.cadence import Cadence
from official_trainer.evaluation_sets import parted
from official_trainer.metrics.window import write_window
from official_trainer.stop import EvaluationStopped, StopRequest
from official_trainer.timing.phases import Enter, Phase, Phases
from official_trainer.trainer import Trainer


class Loop(orbit.Controller):
  """Runs inner loops and evaluations, and the actions after each.

      evaluate first, if an evaluation is due at the restored step and was not done
      while step < train_steps, the data last, and nothing says that the run is done:
        trainer.train(up to the next step at which anything is due)
        for action in actions.after_loop: action(event)     # recover, history, checkpoint, write
        if an evaluation is due:
          trainer.evaluate(validation_steps)                # exports the best checkpoint
          for action in actions.after_eval: action(event)   # history, write
      evaluate, if the last step was not evaluated
      for action in actions.at_end: action()

  Restoring and saving are the runner's and the actions' business; Orbit's own checkpoint manager, summaries and prints
  are not used.
  """

  def __init__(
    self,
    *,
    trainer: Trainer,
    cadence: Cadence,
    actions: Actions,
    train: bool = True,
    evaluate: bool = True,
    clock: Callable[[], float] = time.monotonic,
    phases: Enter | None = None,
    waited: Callable[[float], None] = lambda secs: None,
    stop: StopRequest | None = None,
    further_stops: Callable[[int], Collection[int]] = lambda step: (),
    around_loop: Callable[[int], contextlib.AbstractContextManager[None]] = lambda step: contextlib.nullcontext(),
  ):
    """Stores its parts; runs nothing.

    Args:
      trainer: trains and evaluates.
      cadence: when things are due.
      actions: what is done, in order.
      train: whether `trainer` can train.
      evaluate: whether `trainer` can evaluate.
      clock: returns seconds.
      phases: entered for the length of each phase.
      waited: told how many seconds of the training just done were spent waiting for data.
      stop: the request to stop that `trainer` watches; None if nobody asks.
      further_stops: returns more steps at which inner loops must end, given the step at which the next one begins.
      around_loop: entered for the length of each inner loop, given the step at which it begins.

    Raises of the methods that train or evaluate:
      Preempted: when a stop was asked for, after `actions.on_stop`.
    """
    super().__init__(
      global_step=trainer.global_step,
      trainer=trainer if train else None,
      evaluator=trainer if evaluate else None,
      strategy=trainer.strategy,
      steps_per_loop=cadence.steps_per_loop,
    )
    self._state = trainer.state
    self._train_and_eval = trainer
    self._cadence = cadence
    self._actions = actions
    self._clock = clock
    self._phases = phases or Phases()
    self._waited = waited
    self._stop = stop
    self._further_stops = further_stops
    self._around_loop = around_loop
    self._compiled = False
    self._clear_speed()
    self._ended_at: int | None = None
    self._has_told_finish = False

  @property
  def input_ended(self) -> bool:
    """Whether the training data ended before `train_steps`."""
    return self._ended_at is not None

  def train(self, steps: int, checkpoint_at_completion: bool = True) -> None:
    """Trains until `steps` updates are completed, or the data end.

    Args:
      steps: number of completed updates to reach.
      checkpoint_at_completion: whether a checkpoint is saved at `steps`, whatever the interval.
    """
    cadence = dataclasses.replace(self._cadence, train_steps=steps, validation_interval=None)
    with self._errors_flushed():
      while self._goes_on(steps):
        self._train_once(cadence, checkpoint_at_completion)

  def evaluate(self, steps: int = -1) -> Mapping[str, Any]:
    """Evaluates the present weights and runs the actions.

    Args:
      steps: number of batches; -1 evaluates the whole set.

    Returns:
      The trainer's logs.
    """
    self._require("evaluator", for_method="evaluate")
    if steps < 1 and steps != -1:
      raise ValueError(f"`steps` of an evaluation must be at least 1, or -1 for the whole set; got {steps}.")
    with self._errors_flushed():
      return self._evaluate_once(steps)

  def train_and_evaluate(
    self, train_steps: int, eval_steps: int = -1, eval_interval: int | None = None
  ) -> Mapping[str, Any] | None:
    """Trains until `train_steps` with evaluations on the grid of `eval_interval`, and one at the end.

    Returns:
      The logs of the last evaluation.
    """
    self._require("trainer", for_method="train_and_evaluate")
    self._require("evaluator", for_method="train_and_evaluate")
    cadence = dataclasses.replace(
      self._cadence, train_steps=train_steps, validation_interval=eval_interval or train_steps
    )
    logs: Mapping[str, Any] | None = None
    with self._errors_flushed():
      if cadence.evaluates(self._state.step) and self._state.host.last_eval_step < self._state.step < train_steps:
        logs = self._evaluate_once(eval_steps)
      while self._goes_on(train_steps):
        self._train_once(cadence, save_at_end=True)
        if cadence.evaluates(self._state.step) and self._state.host.last_eval_step < self._state.step:
          logs = self._evaluate_once(eval_steps)
      if logs is None or self._state.host.last_eval_step < self._state.step:
        logs = self._evaluate_once(eval_steps)
    return logs

  def evaluate_continuously(
    self,
    steps: int = -1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    checkpoints: Iterable[int] = (),
  ) -> Mapping[str, Any] | None:
    """Evaluates checkpoint after checkpoint.

    Args:
      steps: number of batches; -1 evaluates the whole set.
      timeout: unused; whoever yields the checkpoints waits.
      timeout_fn: unused, as `timeout`.
      checkpoints: yields the step each time a checkpoint has been restored into the trainer's state.

    Returns:
      The logs of the last evaluation, or None.
    """
    del timeout, timeout_fn
    logs = None
    for _ in checkpoints:
      logs = self.evaluate(steps)
    return logs

  def finish(self) -> None:
    """Runs the actions of the end."""
    for action in self._actions.at_end:
      action()

  def _goes_on(self, steps: int) -> bool:
    """Says whether there is something left to train; tells once that a run is done before."""
    if self._state.host.finished is not None and not self._has_told_finish:
      self._has_told_finish = True
      for action in self._actions.on_finish:
        action()
    return self._state.step < steps and not self.input_ended and self._state.host.finished is None

  def _train_once(self, cadence: Cadence, save_at_end: bool) -> None:
    """Runs one inner loop up to the next step at which anything is due, and the actions."""
    self._leave_if_asked()
    start = self._state.step
    goal = cadence.next_stop(start, self._further_stops(start))
    self._open_window()
    with self._phases(Phase.TRAIN if self._compiled else Phase.COMPILE), self._around_loop(start):
      began = self._clock()
      output = self._inner_loop(goal - start)
      elapsed = self._clock() - began
    waited = self._train_and_eval.data_wait.take()
    step = self._state.step
    if self._stop is not None and self._compiled:
      self._stop.pace(elapsed / max(step - start, 1))
    stopping = self._is_stopping  # Asked once: between processes each question is a message.
    ended = step < goal and not stopping
    if ended and step == 0:
      raise ValueError(
        "the training data are empty: not one batch came. Check task.train_data (split, files, batch size)."
      )
    if ended:
      self._ended_at = step
      logging.error(
        "The training data ended at step %d; %d steps were asked for. The run stops here.", step, cadence.train_steps
      )
    # Data that end exactly where a loop did leave nothing to train, but a step to be saved and perhaps to be reported.
    reports = (cadence.reports(step) or ended) and self._state.host.history.find(step, TRAIN) is None
    event = Event(
      step=step,
      start=start,
      mode=TRAIN,
      output=output,
      metrics=scalars_of(output),
      loop_loss=self._train_and_eval.loop_loss,
      timings=self._speed(step - start, elapsed, waited, reports),
      reports=reports,
      saves=ended or stopping or (cadence.saves(step) and (save_at_end or step < cadence.train_steps)),
    )
    self._compiled = True
    try:
      for action in self._actions.after_loop:
        action(event)
    except LoopDiscarded:
      self._ended_at = None
      self._compiled = False  # The next loop begins with another input, as the first one did.
      self._clear_speed()
    self._leave_if_asked()

  @property
  def _is_stopping(self) -> bool:
    return self._stop is not None and self._stop.agreed()

  def _leave_if_asked(self) -> None:
    """Ends the run if a stop was asked for: once everything that must survive is on its way to disk."""
    if self._stop is None or not self._stop.agreed():
      return
    for action in self._actions.on_stop:
      action()
    raise self._stop.preempted(self._state.step)

  def _inner_loop(self, num_steps: int) -> Mapping[str, Any]:
    try:
      return self._train_and_eval.train(tf.constant(num_steps, tf.int32)) or {}
    except (StopIteration, tf.errors.OutOfRangeError) as error:
      if self._train_and_eval.train_input.endless or not _is_end_of_data(error):
        raise  # Something else in the step ran out, such as the room for a file that it writes.
      # The compiled loop raises at the end of the data, after the updates before it were done.
      return self._train_and_eval.train_loop_end() or {}

  def _open_window(self) -> None:
    window = self._state.host.window
    trainer = self._train_and_eval
    if window is not None:
      # After a restart the accumulators are those of a new process; after an evaluation, those that the model shares
      # between both modes were reset.
      write_window(trainer.strategy, trainer.report_metrics, window, trainer.peers)
    trainer.keep_window(window is not None)

  def _speed(self, steps: int, secs: float, waited: float | None, reports: bool) -> dict[str, float]:
    """Returns steps per second, and the share of waiting for data where it is measured, since the last report.

    The first loop compiles and does not count.
    """
    if self._compiled:
      self._pending_steps += steps
      self._pending_secs += secs
      if waited is not None:
        self._waited(waited)
        self._pending_wait = (self._pending_wait or 0.0) + waited
    if not reports or self._pending_secs <= 0:
      return {}
    speed = {"steps_per_second": self._pending_steps / self._pending_secs}
    if self._pending_wait is not None:
      speed["data_wait_share"] = self._pending_wait / self._pending_secs
    self._clear_speed()
    return speed

  def _clear_speed(self) -> None:
    self._pending_steps, self._pending_secs = 0, 0.0
    self._pending_wait: float | None = None

  def _evaluate_once(self, steps: int) -> Mapping[str, Any]:
    began = self._clock()
    try:
      with self._phases(Phase.EVAL):
        output = self._train_and_eval.evaluate(tf.constant(steps, tf.int32)) or {}
    except EvaluationStopped:
      # The raw weights are back in place; the next start repeats the evaluation.
      self._leave_if_asked()
      raise
    step, history = self._state.step, self._state.host.history
    logs, sets = parted(output, self._train_and_eval.evaluation_set_names)
    event = Event(
      step=step,
      start=step,
      mode=VALIDATION,
      output=output,
      metrics=scalars_of(logs),
      sets={name: scalars_of(each) for name, each in sets.items() if history.find(step, name) is None},
      timings={"evaluation_secs": self._clock() - began},
      # Asked to evaluate once more, the same weights give the same row, which is there already.
      reports=history.find(step, VALIDATION) is None,
    )
    for action in self._actions.after_eval:
      action(event)
    self._leave_if_asked()
    return output

  @contextlib.contextmanager
  def _errors_flushed(self) -> Iterator[None]:
    """Flushes the writers when something raises; saves nothing, since the state may be anything."""
    try:
      yield
    except BaseException:
      for action in self._actions.on_error:
        action()
      raise


def _is_end_of_data(error: Exception) -> bool:
  """Tells the end of an iterator from other errors of the same class, such as that of a file grown too large."""
  return isinstance(error, StopIteration) or "End of sequence" in str(error)
