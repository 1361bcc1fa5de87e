"""Saves and restores the accumulators of metrics in the middle of a report.

A checkpoint may fall between two reports. Each replica's own sums are kept, since redistributing a total over replicas
would round differently from the uninterrupted run.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras


def read_window(strategy: tf.distribute.Strategy, metrics: Sequence[tf_keras.metrics.Metric]) -> dict[str, Any]:
  """Returns the accumulators as JSON values: metric name -> variables -> replicas."""
  return {
    metric.name: [
      [_encode(local.numpy()) for local in strategy.experimental_local_results(variable)]
      for variable in metric.variables
    ]
    for metric in metrics
  }


def write_window(
  strategy: tf.distribute.Strategy, metrics: Sequence[tf_keras.metrics.Metric], window: dict[str, Any]
) -> None:
  """Puts accumulators back. On another number of replicas the first one takes the total.

  Args:
    strategy: the strategy in scope.
    metrics: the metrics, as they were when the window was read.
    window: what `read_window` returned.
  """
  for metric in metrics:
    for variable, stored in zip(metric.variables, window.get(metric.name, ()), strict=False):
      values = [_decode(value) for value in stored]
      locals_ = strategy.experimental_local_results(variable)
      if len(values) != len(locals_):
        values = [np.sum(values, axis=0, dtype=values[0].dtype)] + [np.zeros_like(values[0])] * (len(locals_) - 1)
      for local, value in zip(locals_, values, strict=True):
        local.assign(value)


def _encode(value: np.ndarray) -> dict[str, Any]:
  value = np.asarray(value)
  return {"dtype": value.dtype.str, "shape": list(value.shape), "data": base64.b64encode(value.tobytes()).decode()}


def _decode(value: dict[str, Any]) -> np.ndarray:
  data = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
  return data.reshape(value["shape"])
