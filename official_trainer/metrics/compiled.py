"""The metrics that a model has itself, those it was compiled with among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras


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
