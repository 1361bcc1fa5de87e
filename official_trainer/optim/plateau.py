"""A value that falls when evaluations have stopped getting better: a pure function of what they reported."""

from __future__ import annotations

import math
from collections.abc import Iterable

from official_trainer.config.comparison import comparison
from official_trainer.optim.config import PlateauScheduleConfig


def plateau_value(values: Iterable[float], config: PlateauScheduleConfig) -> float:
  """Returns the value after a series of evaluations.

  Args:
    values: of the metric, oldest first. NaN is never better.
    config: the rule.
  """
  sign = 1.0 if comparison(config.metric, config.comparison) == "higher" else -1.0
  value, best, waited, cooldown = config.first, -math.inf, 0, 0
  for metric in values:
    was_cooling, cooldown = cooldown > 0, max(cooldown - 1, 0)
    if sign * metric > best + (config.min_delta if math.isfinite(best) else 0.0):
      best, waited = sign * metric, 0
      continue
    waited = 0 if was_cooling else waited + 1
    if waited >= config.patience:
      value, waited, cooldown = max(value * config.factor, config.least), 0, config.cooldown
  return value
