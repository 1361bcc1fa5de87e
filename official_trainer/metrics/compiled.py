"""The metrics of a report: the task's, and those that a model has itself, those it was compiled with among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras


def joint_metrics(
  task_metrics: Sequence[tf_keras.metrics.Metric],
  model: Any,
  inputs_spec: Callable[[], Any],
  losses: Sequence[tf_keras.metrics.Metric],
) -> list[tf_keras.metrics.Metric]:
  """Returns the metrics of the task and those of the model. Call under the strategy's scope.

  Args:
    task_metrics: what `build_metrics` returned.
    model: a built model.
    inputs_spec: returns the specs of (features, labels), or None where they are not known.
    losses: the mean losses that are reported beside them.

  Raises:
    ValueError: if two of them have the same name.
  """
  metrics = [*task_metrics, *model_metrics(model, inputs_spec)]
  names = [metric.name for metric in [*metrics, *losses]]
  if twice := sorted({name for name in names if names.count(name) > 1}):
    raise ValueError(f"each metric needs a name of its own; {twice} are there more than once (of task and model).")
  return metrics


def has_metrics(model: Any) -> bool:
  """Says whether the model has metrics itself, those it was compiled with among them."""
  return bool(getattr(model, "metrics", ())) or getattr(model, "compiled_metrics", None) is not None


def model_metrics(model: Any, inputs_spec: Callable[[], Any]) -> list[tf_keras.metrics.Metric]:
  """Returns the metrics that the model updates; the mean of its compiled loss, which the trainer reports, is left out.

  tf-keras makes metrics given to `compile` at their first update. They are made here, so that they are reported, and
  restored, like the others. Call under the strategy's scope.

  Args:
    model: a built model.
    inputs_spec: returns the specs of (features, labels), or None where they are not known.
  """
  container = getattr(model, "compiled_metrics", None)
  if container is not None and not container.built and (spec := inputs_spec()) is not None:
    features, labels = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, spec)
    traced = tf.function(lambda batch: model(batch, training=False)).get_concrete_function(features)
    container.build(_zeros(traced.structured_outputs), _zeros(labels))
  losses = getattr(model, "compiled_loss", None)
  left_out = [] if losses is None else losses.metrics
  return [m for m in getattr(model, "metrics", []) if not any(m is known for known in left_out)]


def _zeros(specs: Any) -> Any:
  # Only shapes and types matter, by which "accuracy" becomes one kind of accuracy.
  return tf.nest.map_structure(lambda s: tf.zeros([1 if size is None else size for size in s.shape], s.dtype), specs)
