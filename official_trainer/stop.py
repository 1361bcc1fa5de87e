"""A request to stop, which the compiled loop sees between two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.errors import ExitCode, Preempted

StepFn = Callable[[Any], None]

# A question to all processes costs about a millisecond.
_SECS_BETWEEN = 0.1
_MOST_STEPS_BETWEEN = 100


class EvaluationStopped(Exception):
  """Leaves an evaluation whose result nobody will wait for."""


class StopRequest:
  """Says once, from any thread, that the run is to stop; read by Python and by the compiled loop.

  Make it outside of any strategy's scope, so that one host variable serves all replicas.

  Processes that train together must stop at the same step, whoever was asked. They agree in the compiled loop, about
  every tenth of a second, and between inner loops (`agreed`).
  """

  def __init__(
    self,
    *,
    from_chief: Callable[[int], int] = int,
    any_process: Callable[[bool], bool] = bool,
    is_set_anywhere: Callable[[tf.Variable], tf.Tensor] | None = None,
  ):
    """Makes the variable.

    Args:
      from_chief: returns the chief's number, whoever calls it; called by all processes, eagerly.
      any_process: says whether a flag is set in any process; called by all of them, eagerly.
      is_set_anywhere: likewise of a bool variable, in a graph. None for a process that trains alone.
    """
    with tf.device("CPU:0"):
      self.variable = tf.Variable(False, trainable=False, name="stop")
      self._steps_between = tf.Variable(1, trainable=False, name="steps_between_questions")
    self._from_chief = from_chief
    self._any_process = any_process
    self._is_set_anywhere = is_set_anywhere
    self._reason: str | None = None
    self._code = ExitCode.RESTART
    self._agreed = False

  @property
  def is_set(self) -> bool:
    """Whether this process was asked."""
    return self._reason is not None

  def agreed(self) -> bool:
    """Returns whether any process was asked. All of them call it, at the same place of the run."""
    self._agreed = self._agreed or self._any_process(self.is_set)
    return self._agreed

  def set(self, reason: str, code: ExitCode) -> None:
    """Asks for a stop. The first request counts.

    Args:
      reason: what asks, e.g. "SIGTERM".
      code: what the process shall exit with.
    """
    if self._reason is None:
      self._reason, self._code = reason, code
      self.variable.assign(True)

  def pace(self, secs_a_step: float) -> None:
    """Tells how long a step takes, so that processes ask each other often enough and not more. All of them call it.

    The chief's number counts. Steps of a tenth of a second and more are short of nothing by asking in each.
    """
    if self._is_set_anywhere is not None:
      wanted = min(max(1, int(_SECS_BETWEEN / max(secs_a_step, 1e-6))), _MOST_STEPS_BETWEEN)
      self._steps_between.assign(self._from_chief(wanted))

  def watched_loop(self, step_fn: StepFn, *, in_graph: bool, as_function: bool) -> Callable[[Any, tf.Tensor], None]:
    """Returns a loop of `num_steps` calls of `step_fn(iterator)`, which ends early when a stop is asked for.

    Args:
      step_fn: one training step.
      in_graph: whether the loop is a `tf.while_loop`, which reads the variable before each step.
      as_function: whether the step of a loop in Python is a `tf.function`.
    """
    if not in_graph:
      return self._python_loop(tf.function(step_fn) if as_function else step_fn)

    def loop_fn(iterator: Any, num_steps: tf.Tensor) -> None:
      done = tf.constant(0)
      while tf.logical_and(done < num_steps, tf.logical_not(self.variable)):
        # Without it the ops of the step would be named after the loop.
        with tf.name_scope(""):
          step_fn(iterator)
        done += 1

    def agreeing_loop_fn(iterator: Any, num_steps: tf.Tensor) -> None:
      done, is_last = tf.constant(0), tf.constant(False)
      while tf.logical_and(done < num_steps, tf.logical_not(is_last)):
        if done % self._steps_between == 0:
          # Asked while the step computes, so that nobody waits for the answer: it counts after this step.
          is_last = self._is_set_anywhere(self.variable)
        with tf.name_scope(""):
          step_fn(iterator)
        done += 1

    if self._is_set_anywhere is not None:
      return tf.function(agreeing_loop_fn)
    return tf.function(loop_fn)

  def _python_loop(self, step_fn: StepFn) -> Callable[[Any, tf.Tensor], None]:
    def loop_fn(iterator: Any, num_steps: tf.Tensor) -> None:
      for _ in range(int(num_steps)):
        if self.agreed():
          return
        step_fn(iterator)

    return loop_fn

  def watched_evaluation(self, loop_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an evaluation loop in Python that raises EvaluationStopped after the batch in which it was asked for."""

    def watched(iterator: Any, num_steps: Any, state: Any = None, reduce_fn: Any = None) -> Any:
      def reduce(state: Any, outputs: Any) -> Any:
        if self.agreed():
          raise EvaluationStopped
        return None if reduce_fn is None else reduce_fn(state, outputs)

      return loop_fn(iterator, num_steps, state=state, reduce_fn=reduce)

    return watched

  def preempted(self, step: int) -> Preempted:
    """Returns the error that ends the run.

    Args:
      step: completed updates that the saved state holds.
    """
    return Preempted(step, self._reason or "a request to another process of the run", self._code)
