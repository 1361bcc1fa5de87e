"""What replicas computed of each example, joined on the host without the padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def real_rows(parts: Any, masks: Any = None) -> Any:
  """Joins what the replicas have of a batch, for use in `Task.aggregate_logs`.

      predictions = real_rows(step_outputs["predictions"], step_outputs.get("mask"))

  Args:
    parts: one entry of the logs of a step: a tuple of tensors [n, ...], one for each replica, or such tuples nested in
      dictionaries, lists and tuples.
    masks: likewise the masks [n], 1 for an example and 0 for padding; None where no batch is padded.

  Returns:
    NumPy arrays [number of examples, ...], nested as `parts`.
  """
  kept = None if masks is None else np.concatenate([np.asarray(mask) for mask in masks]) > 0
  return _joined(parts, kept)


def _joined(node: Any, kept: np.ndarray | None) -> Any:
  if isinstance(node, Mapping):
    return {key: _joined(value, kept) for key, value in node.items()}
  if any(isinstance(part, Mapping | list | tuple) for part in node):
    values = [_joined(value, kept) for value in node]
    return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)
  rows = np.concatenate([np.asarray(part) for part in node])
  return rows if kept is None else rows[kept]
