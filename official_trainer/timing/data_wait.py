"""How long the compiled loop waits for its input."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class DataWait:
  """Measures, between the steps of a compiled loop, the time in which the next batch is not there yet.

  Make it outside of any strategy's scope, so that one host variable serves all replicas.
  """

  def __init__(self) -> None:
    with tf.device("CPU:0"):
      self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="data_wait")

  def timed(self, next_inputs: Callable[[], Any]) -> Any:
    """Returns what `next_inputs` returns, and adds the time it took. Traced; runs on the host.

    A step begins when all that the step before writes is written, so the time is that in which training stands still.
    """
    with tf.device("CPU:0"):
      began = tf.timestamp()
    with tf.control_dependencies([began]):
      inputs = next_inputs()
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]), tf.device("CPU:0"):
      self._secs.assign_add(tf.timestamp() - began)
    return inputs

  def take(self) -> float:
    """Returns the seconds since the last call. Runs eagerly."""
    secs = float(self._secs.numpy())
    self._secs.assign(0.0)
    return secs


class NoDataWait:
  """The null object: nothing is measured, and nothing is told."""

  def timed(self, next_inputs: Callable[[], Any]) -> Any:
    return next_inputs()

  def take(self) -> float | None:
    return None


def build_data_wait(deterministic_ops: bool) -> DataWait | NoDataWait:
  """Returns what measures the wait, or nothing where TensorFlow refuses to read a clock.

  Args:
    deterministic_ops: `runtime.deterministic_ops`. The environment may ask for the same by TF_DETERMINISTIC_OPS.
  """
  asked = os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true")
  return NoDataWait() if deterministic_ops or asked else DataWait()
