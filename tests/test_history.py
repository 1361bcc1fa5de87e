import math

import pytest

from official_trainer.history import History, Row


@pytest.fixture
def history():
  history = History()
  history.append(2, "train", {"loss": 0.5})
  history.append(2, "validation", {"loss": 0.75, "accuracy": 0.25})
  history.append(4, "train", {"loss": 0.25})
  return history


def test_rows_are_kept_in_the_order_of_their_reports(history):
  assert [(row.step, row.mode) for row in history] == [
    (2, "train"),
    (2, "validation"),
    (4, "train"),
  ]
  assert len(history) == 3
  assert history.rows[0] == Row(2, "train", {"loss": 0.5})


def test_a_step_is_reported_once_for_each_mode(history):
  with pytest.raises(ValueError, match="already holds a 'train' row for step 4"):
    history.append(4, "train", {"loss": 0.25})
  history.append(4, "validation", {"loss": 0.5})


def test_find_returns_the_row_of_a_step_and_a_mode_or_none(history):
  assert history.find(2, "validation").metrics["accuracy"] == 0.25
  assert history.find(4, "validation") is None
  assert history.find(3, "train") is None
  assert History().find(0, "train") is None


def test_last_is_the_newest_row_of_a_mode(history):
  assert history.last("train").step == 4
  assert history.last("validation").step == 2
  assert history.last("test") is None


def test_a_series_leaves_out_rows_without_the_metric(history):
  assert history.series("train", "loss") == [(2, 0.5), (4, 0.25)]
  assert history.series("validation", "accuracy") == [(2, 0.25)]
  assert history.series("train", "accuracy") == []


def test_json_gives_back_an_equal_history(history):
  history.append(6, "train", {"loss": math.inf})
  copy = History.from_json(history.to_json())
  assert copy.rows == history.rows


def test_a_row_does_not_change_with_the_mapping_it_was_made_from():
  history, metrics = History(), {"loss": 1.0}
  history.append(1, "train", metrics)
  metrics["loss"] = 2.0
  assert history.last("train").metrics == {"loss": 1.0}


def test_it_shows_its_rows(history):
  assert repr(history).startswith('History([[2, "train", {"loss": 0.5}]')


def test_modes_and_metrics_are_listed_in_the_order_of_their_first_reports(history):
  history.append(4, "train_split", {"accuracy": 1.0})
  assert history.modes == ["train", "validation", "train_split"]
  assert history.metrics("validation") == ["loss", "accuracy"]
  assert history.metrics("test") == []


def test_the_best_is_the_first_of_the_finite_values_that_none_beats():
  history = History()
  for step, (loss, accuracy) in enumerate([(math.nan, 0.5), (0.25, 0.75), (0.25, 0.75), (math.inf, math.nan)], 1):
    history.append(step, "validation", {"loss": loss, "accuracy": accuracy})
  assert history.best("validation", "loss") == (2, 0.25)
  assert history.best("validation", "accuracy") == (2, 0.75)
  assert history.best("validation", "accuracy", "lower") == (1, 0.5)
  assert history.best("train", "loss") is None


def test_evaluations_before_a_step_are_counted(history):
  history.append(4, "validation", {})
  assert [history.num_before(step, "validation") for step in (2, 3, 4, 5)] == [0, 1, 1, 2]
  assert history.num_before(9, "test") == 0


def test_a_metric_is_found_by_the_name_that_rules_know_it_by():
  history = History()
  history.append(2, "train", {"accuracy": 0.125})
  history.append(2, "validation", {"accuracy": 0.25, "b/deep/er": 0.5, "x|y": 4.0})
  history.append(2, "train_split", {"accuracy": 0.75, "b/er": 1.0})
  expected = {
    "accuracy": 0.25, "b|deep|er": 0.5, "x|y": 4.0, "train_split|accuracy": 0.75, "train_split|b|er": 1.0,
  }  # fmt: skip
  assert {name: history.named_series(name) for name in expected} == {n: [(2, v)] for n, v in expected.items()}
  for unknown in ("train|accuracy", "validation|accuracy", "train_split", "train_split|loss", "other|accuracy"):
    assert history.named_series(unknown) == []
