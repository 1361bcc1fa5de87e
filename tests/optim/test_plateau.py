import math

import pytest

from official_trainer.optim.config import PlateauScheduleConfig
from official_trainer.optim.plateau import plateau_value


def trace(values, **settings):
  """Returns the value after each evaluation."""
  config = PlateauScheduleConfig(**{"metric": "loss", "factor": 0.5, "patience": 2, **settings})
  return [plateau_value(values[:count], config) for count in range(len(values) + 1)]


def test_the_value_falls_at_the_evaluation_that_ends_the_patience():
  assert trace([5, 4, 4, 4, 3, 4, 4]) == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_a_least_gain_is_asked_for():
  assert trace([5.0, 4.9, 4.8], min_delta=0.5) == [1, 1, 1, 0.5]
  assert trace([5.0, 4.9, 4.8]) == [1, 1, 1, 1]


def test_in_the_cooldown_nothing_counts():
  assert trace([5] * 8, cooldown=2) == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_the_value_never_falls_below_the_least():
  assert trace([5] * 7, patience=1, least=0.2)[-3:] == [0.2, 0.2, 0.2]


def test_higher_is_better_where_the_metric_is_no_loss():
  assert trace([0.1, 0.2, 0.3], metric="accuracy", patience=1) == [1, 1, 1, 1]
  assert trace([0.3, 0.2], metric="accuracy", patience=1) == [1, 1, 0.5]
  assert trace([0.3, 0.2], metric="accuracy", patience=1, comparison="lower") == [1, 1, 1]


def test_nan_is_never_better():
  assert trace([math.nan, math.nan, 5]) == [1, 1, 0.5, 0.5]


def test_it_starts_at_the_first_value():
  assert trace([], first=3.0) == [3.0]
  assert trace([5, 5, 5], first=0.2) == pytest.approx([0.2, 0.2, 0.2, 0.1])
