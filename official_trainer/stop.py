"""A request to stop, which the compiled loop sees between two steps."""

from __future__ import annotations

import tensorflow as tf

from official_trainer.errors import ExitCode, Preempted


class EvaluationStopped(Exception):
  """Leaves an evaluation whose result nobody will wait for."""


class StopRequest:
  """Says once, from any thread, that the run is to stop; read by Python and by the compiled loop.

  Make it outside of any strategy's scope, so that one host variable serves all replicas.
  """

  def __init__(self) -> None:
    with tf.device("CPU:0"):
      self.variable = tf.Variable(False, trainable=False, name="stop")
    self._reason: str | None = None
    self._code = ExitCode.RESTART

  @property
  def is_set(self) -> bool:
    return self._reason is not None

  def set(self, reason: str, code: ExitCode) -> None:
    """Asks for a stop. The first request counts.

    Args:
      reason: what asks, e.g. "SIGTERM".
      code: what the process shall exit with.
    """
    if self._reason is None:
      self._reason, self._code = reason, code
      self.variable.assign(True)

  def raise_in_evaluation(self) -> None:
    """Raises EvaluationStopped if a stop was asked for."""
    if self.is_set:
      raise EvaluationStopped

  def preempted(self, step: int) -> Preempted:
    """Returns the error that ends the run.

    Args:
      step: completed updates that the saved state holds.
    """
    return Preempted(step, self._reason or "a request", self._code)
