"""Losses that are sums of terms, each of which is reported beside their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def require_terms(losses: Any, weights: Mapping[str, float], owner: str) -> None:
  """Refuses terms that are not those that were named.

  Args:
    losses: what `build_losses` returned.
    weights: `loss_terms` of the task.
    owner: the name of the task's class, for the error.

  Raises:
    ValueError: naming what was returned and what was named.
  """
  found = list(losses) if isinstance(losses, Mapping) else None
  if (found is None and not weights) or (found and sorted(found) == sorted(weights)):
    return
  returned = "one loss" if found is None else f"the terms {found}"
  remedy = "Name each term with its weight in `loss_terms`, and return a mapping with exactly those names."
  raise ValueError(f"{owner}.build_losses returned {returned}; loss_terms names {list(weights)}. {remedy}")


def weighted_sum(terms: Mapping[str, tf.Tensor], weights: Mapping[str, float]) -> tf.Tensor:
  """Returns the loss, float32 scalar, of terms that are float32 scalars."""
  return tf.add_n([weights[name] * term for name, term in terms.items()])
