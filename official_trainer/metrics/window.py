"""Saves and restores the accumulators of metrics in the middle of a report.

A checkpoint may fall between two reports. Each replica's own sums are kept, since redistributing a total over replicas
would round differently from the uninterrupted run.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras


class Processes(Protocol):
  """The processes that train together (`distribute.peers.Peers`)."""

  num: int
  index: int

  def gathered_bytes(self, mine: bytes) -> list[bytes]:
    """Returns everybody's bytes, of which all have the same number."""


def read_window(
  strategy: tf.distribute.Strategy, metrics: Sequence[tf_keras.metrics.Metric], processes: Processes
) -> dict[str, Any]:
  """Returns the accumulators as JSON values: metric name -> variables -> replicas of all processes.

  Args:
    strategy: the strategy in scope.
    metrics: the metrics.
    processes: those that train together, all of which call it.
  """
  values = {metric.name: [_local_values(strategy, variable) for variable in metric.variables] for metric in metrics}
  flat = [value for variables in values.values() for replicas in variables for value in replicas]
  readers = [io.BytesIO(blob) for blob in processes.gathered_bytes(b"".join(value.tobytes() for value in flat))]
  return {
    name: [[_encode(_next_like(reader, value)) for reader in readers for value in replicas] for replicas in variables]
    for name, variables in values.items()
  }


def write_window(
  strategy: tf.distribute.Strategy,
  metrics: Sequence[tf_keras.metrics.Metric],
  window: dict[str, Any],
  processes: Processes,
) -> None:
  """Puts accumulators back. On another number of replicas the very first one takes the total.

  Args:
    strategy: the strategy in scope.
    metrics: the metrics, as they were when the window was read.
    window: what `read_window` returned.
    processes: those that train together.
  """
  for metric in metrics:
    for variable, stored in zip(metric.variables, window.get(metric.name, ()), strict=False):
      values = [_decode(value) for value in stored]
      locals_ = strategy.experimental_local_results(variable)
      num_replicas = len(locals_) * processes.num
      if len(values) != num_replicas:
        values = [np.sum(values, axis=0, dtype=values[0].dtype)] + [np.zeros_like(values[0])] * (num_replicas - 1)
      first = len(locals_) * processes.index
      for local, value in zip(locals_, values[first : first + len(locals_)], strict=True):
        local.assign(value)


def _local_values(strategy: tf.distribute.Strategy, variable: tf.Variable) -> list[np.ndarray]:
  return [np.asarray(local.numpy()) for local in strategy.experimental_local_results(variable)]


def _next_like(reader: io.BytesIO, value: np.ndarray) -> np.ndarray:
  return np.frombuffer(reader.read(value.nbytes), dtype=value.dtype).reshape(value.shape)


def _encode(value: np.ndarray) -> dict[str, Any]:
  return {"dtype": value.dtype.str, "shape": list(value.shape), "data": base64.b64encode(value.tobytes()).decode()}


def _decode(value: dict[str, Any]) -> np.ndarray:
  data = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
  return data.reshape(value["shape"])
