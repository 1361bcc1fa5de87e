"""When a run ends before its last step. Imports no TensorFlow."""

import dataclasses

from official_trainer.config.comparison import Comparison
from official_trainer.config.durations import Steps
from official_trainer.config.fields import NonNegative, Positive, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopConfig:
  """Ends a run whose evaluations have stopped getting better. Judged from the history alone, restarts included."""

  metric: str = setting(
    "", "Metric to judge by; parts of nested names, such as the name of an evaluation set, are joined by '|'. Required."
  )
  patience: Positive = setting(3, "Evaluations in a row without a better value after which the run ends.")
  min_delta: NonNegative = setting(
    0.0, "By how much a value must be better than the best before it to count, in units of the metric."
  )
  comparison: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  start_step: Steps = setting(0, "Evaluations before this step are not looked at.")
  baseline: float | None = setting(
    None, "A value that the metric must beat to count at all. None: the first evaluation counts."
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopAtConfig:
  """Ends a run at the evaluation that reaches a target."""

  metric: str = setting("", "Metric to judge by, named as that of `early_stop`. Required.")
  value: float | None = setting(None, "The target: reached by a value that is equal to it, or better. Required.")
  comparison: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
