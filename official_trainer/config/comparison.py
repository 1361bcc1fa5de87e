"""Which of two values of a metric is better."""

from typing import Literal

Comparison = Literal["higher", "lower"]


def comparison(eval_metric: str, metric_comp: Comparison | None) -> Comparison:
  """Returns which direction is better for a metric.

  Args:
    eval_metric: Name of the metric; parts of nested names are joined by '|'.
    metric_comp: What the config says, or None when it says nothing.

  Returns:
    `metric_comp` when given; else "lower" for names that end in "loss", "higher" for all others.
  """
  if metric_comp is not None:
    return metric_comp
  return "lower" if eval_metric.endswith("loss") else "higher"
