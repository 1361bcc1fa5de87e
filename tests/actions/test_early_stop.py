import math
import types

import pytest

from official_trainer.actions.config import EarlyStopConfig, StopAtConfig
from official_trainer.actions.early_stop import (
  EndEarly,
  ending_metric_names,
  history_rules,
  num_without_gain,
  out_of_patience,
  target_reached,
)
from official_trainer.actions.event import Event
from official_trainer.config.trainer import TrainerConfig
from official_trainer.history import History
from official_trainer.state import HostState


def scores(*values):
  return [(step, value) for step, value in enumerate(values, 1)]


def history_of(*values, name="accuracy", mode="validation"):
  history = History()
  for step, value in scores(*values):
    history.append(step, mode, {name: value})
  return history


def test_evaluations_without_a_better_value_are_counted_since_the_best():
  assert num_without_gain([], "higher") == (0, None)
  assert num_without_gain(scores(0.5, 0.75, 0.75, 0.5), "higher") == (2, 0.75)
  assert num_without_gain(scores(0.5, 0.75, 0.5, 0.25), "lower") == (0, 0.25)
  assert num_without_gain(scores(0.5, 0.5, 0.5, 1.0), "higher") == (0, 1.0)


def test_a_value_that_is_not_finite_is_never_better():
  assert num_without_gain(scores(math.nan, math.inf, 0.5, math.inf), "higher") == (1, 0.5)
  assert num_without_gain(scores(math.nan, -math.inf), "lower") == (2, None)


def test_a_small_gain_does_not_count_and_does_not_add_up():
  values = scores(0.0, 0.25, 0.5, 0.75)
  assert num_without_gain(values, "higher", min_delta=0.25) == (0, 0.75)
  assert num_without_gain(values, "higher", min_delta=0.5) == (1, 0.5)


def test_values_before_the_start_step_count_neither_way():
  values = scores(1.0, 0.5, 0.25, 0.5)
  assert num_without_gain(values, "higher") == (3, 1.0)
  assert num_without_gain(values, "higher", start_step=2) == (2, 0.5)
  assert num_without_gain(values, "higher", start_step=9) == (0, None)


def test_the_first_value_must_beat_the_baseline():
  assert num_without_gain(scores(0.5, 0.6), "higher", baseline=0.75) == (2, 0.75)
  assert num_without_gain(scores(0.5, 0.8), "higher", baseline=0.75) == (0, 0.8)


def test_patience_is_over_after_so_many_evaluations():
  config = EarlyStopConfig(metric="loss", patience=3)
  # The lower the better, as the name says; the same whether the process was started anew in between or not.
  assert [out_of_patience(history_of(*[1, 2, 2, 2][:n], name="loss"), config) for n in range(1, 4)] == [None] * 3
  reason = out_of_patience(history_of(1, 2, 2, 2, name="loss"), config)
  assert reason == "early stop: loss was not lower than 1 in 3 evaluations"


@pytest.mark.parametrize(
  ("config", "text"),
  [
    ({"comparison": "lower", "min_delta": 0.5}, "accuracy was not lower than 0.5 by 0.5 in 2 evaluations"),
    ({"baseline": 0.875}, "accuracy was not higher than 0.875 in 3 evaluations"),
    ({"start_step": 2}, None),
  ],
)
def test_the_settings_of_the_rule_decide(config, text):
  found = out_of_patience(history_of(0.5, 0.75, 0.75), EarlyStopConfig(metric="accuracy", patience=2, **config))
  assert found == (text and f"early stop: {text}")


def test_the_metric_of_a_named_set_is_watched():
  history = history_of(0.5, 0.25, mode="train_split")
  history.append(3, "validation", {"accuracy": 0.125})
  config = EarlyStopConfig(metric="train_split|accuracy", patience=1)
  assert "train_split|accuracy was not higher than 0.5" in out_of_patience(history, config)
  assert out_of_patience(history, EarlyStopConfig(metric="accuracy", patience=1)) is None


def test_a_target_is_reached_by_an_equal_value_and_by_the_newest_one():
  config = StopAtConfig(metric="accuracy", value=0.75)
  assert target_reached(History(), config) is None
  assert target_reached(history_of(0.5), config) is None
  assert target_reached(history_of(0.5, 0.75), config) == "target reached: accuracy is 0.75, 0.75 was asked for"
  assert target_reached(history_of(0.8, 0.5), config) is None  # It was asked for after that evaluation.
  assert target_reached(history_of(math.inf), config) is None
  assert "is 0.5" in target_reached(history_of(0.5, name="loss"), StopAtConfig(metric="loss", value=0.75))


def test_the_rules_of_a_config_and_the_names_they_watch():
  options = TrainerConfig(
    early_stop=EarlyStopConfig(metric="loss", patience=1), stop_at=StopAtConfig(metric="accuracy", value=0.5)
  )
  assert ending_metric_names(options) == {"trainer.early_stop.metric": "loss", "trainer.stop_at.metric": "accuracy"}
  assert [rule(history_of(0.5)) is None for rule in history_rules(options)] == [True, False]
  assert history_rules(TrainerConfig()) == [] and ending_metric_names(TrainerConfig()) == {}


def state_of(history, step=2):
  host = HostState()
  host.history = history
  return types.SimpleNamespace(host=host, step=step)


def test_a_run_is_done_for_the_first_reason_and_not_at_its_last_step():
  rules = [lambda history: None, lambda history: "first", lambda history: "second"]
  state = state_of(History())
  EndEarly(state, rules, train_steps=4)(Event(step=2, mode="validation", output={}, metrics={}))
  assert state.host.finished == "first"
  last = state_of(History(), step=4)
  EndEarly(last, rules, train_steps=4).decide()
  assert last.host.finished is None


def test_processes_end_together_as_the_chief_says():
  state = state_of(History())
  EndEarly(state, [lambda history: "mine"], train_steps=4, from_chief=lambda value: 0).decide()
  assert state.host.finished is None
  EndEarly(state, [lambda history: None], train_steps=4, from_chief=lambda value: 1).decide()
  assert state.host.finished == "the chief's history says so"
  without_rules = EndEarly(state_of(History()), [], train_steps=4, from_chief=lambda value: pytest.fail("asked"))
  without_rules.decide()
