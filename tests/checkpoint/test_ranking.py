import itertools
import math

import pytest

from official_trainer.checkpoint.ranking import Ranking, is_better

NOT_FINITE = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(("comparison", "better"), [("higher", 2.0), ("lower", 0.5)])
def test_only_a_strictly_better_value_replaces_the_best(comparison, better):
  worse = 1.0 / better
  assert is_better(better, 1.0, comparison)
  assert not is_better(worse, 1.0, comparison)
  assert not is_better(1.0, 1.0, comparison)
  assert is_better(worse, None, comparison)


@pytest.mark.parametrize("comparison", ["higher", "lower"])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_value_that_is_not_finite_is_never_best_and_never_in_the_way(comparison, value):
  for old in (None, 1.0, *NOT_FINITE):
    assert not is_better(value, old, comparison)
  assert is_better(0.0, value, comparison)


@pytest.mark.parametrize("comparison", ["higher", "lower"])
def test_the_best_of_any_order_of_scores_is_the_best_finite_one(comparison):
  scores = (0.5, 0.9, 0.1, math.nan, math.inf)
  expected = 0.9 if comparison == "higher" else 0.1
  for order in itertools.permutations(scores):
    old = None
    for score in order:
      old = score if is_better(score, old, comparison) else old
    assert old == expected


def ranking(**settings):
  return Ranking(metric_name="score", **{"comparison": "higher", **settings})


def ranked(scores, **settings):
  """Returns the steps that are kept, best first, after evaluations with these scores at steps 1, 2, ..."""
  kept = []
  for step, score in enumerate(scores, 1):
    kept = ranking(**settings).with_candidate(kept, {"score": score, "best_ckpt_global_step": step}) or kept
  return [record["best_ckpt_global_step"] for record in kept]


def test_an_equal_value_becomes_the_best_where_the_last_of_equals_counts():
  assert is_better(1.0, 1.0, "higher", ties="last")
  assert not is_better(0.9, 1.0, "higher", ties="last")
  assert ranked([0.5, 0.9, 0.9], ties="first") == [2]
  assert ranked([0.5, 0.9, 0.9], ties="last") == [3]


def test_a_gain_below_the_least_one_does_not_count():
  assert not is_better(0.5, 0.25, "higher", min_gain=0.5)
  assert is_better(0.75, 0.25, "higher", min_gain=0.5)
  assert is_better(0.25, 0.75, "lower", min_gain=0.5)
  assert not is_better(0.25, 0.25, "higher", min_gain=0.5, ties="last")
  # Small gains do not add up unnoticed: each is measured against the one that is kept.
  assert ranked([0.0, 0.25, 0.5, 0.75], min_gain=0.5) == [3]


def test_the_best_few_are_ranked():
  assert ranked([0.5, 0.9, 0.1, 0.7], top_k=3) == [2, 4, 1]
  assert ranked([0.5, 0.9, 0.1, 0.7], top_k=3, comparison="lower") == [3, 1, 4]
  assert ranked([0.5, math.nan, 0.9, math.inf], top_k=3) == [3, 1]
  assert ranked([0.5, 0.5, 0.5], top_k=2) == [1, 2]
  assert ranked([0.5, 0.5, 0.5], top_k=2, ties="last") == [3, 2]
  # Free places ask for no gain; a taken one is given up for a gain over its own value.
  assert ranked([0.0, 0.25, 0.375, 0.5], top_k=2, min_gain=0.5) == [4, 2]


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_best_few_of_any_order_of_scores_are_the_highest_finite_ones(top_k):
  scores = (0.5, 0.9, 0.1, math.nan, 0.7)
  for order in itertools.permutations(scores):
    assert [order[step - 1] for step in ranked(order, top_k=top_k)] == [0.9, 0.7, 0.5][:top_k]


def test_a_step_that_is_evaluated_again_changes_nothing_unless_it_scores_better():
  kept = [{"score": 0.5, "best_ckpt_global_step": 3}, {"score": 0.25, "best_ckpt_global_step": 1}]
  for ties in ("first", "last"):
    rule = ranking(top_k=2, ties=ties)
    for score in (0.5, 0.375):
      assert rule.with_candidate(kept, {"score": score, "best_ckpt_global_step": 3}) is None
  better = rule.with_candidate(kept, {"score": 0.75, "best_ckpt_global_step": 1})
  assert [record["score"] for record in better] == [0.75, 0.5]


def test_what_is_to_come_is_ranked_as_if_it_had_come():
  kept = [{"score": 0.5, "best_ckpt_global_step": 1}]
  later = [{"score": score, "best_ckpt_global_step": step} for step, score in ((6, 0.625), (4, 0.75), (5, 0.25))]
  assert [record["score"] for record in ranking(top_k=2).with_later(kept, later)] == [0.75, 0.625]
  assert ranking().with_later(kept, later[2:]) == kept
