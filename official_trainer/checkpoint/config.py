"""Which weights are kept besides the regular checkpoints. Imports no TensorFlow."""

import dataclasses
from typing import Literal

from official_trainer.config.comparison import Comparison
from official_trainer.config.fields import NonNegative, Positive, setting

Ties = Literal["first", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCheckpointConfig:
  """One more rule by which the best weights so far are exported."""

  subdir: str = setting("", "Folder of the exported weights, inside model_dir.")
  eval_metric: str = setting(
    "", "Metric to judge by; parts of nested names, such as the name of an evaluation set, are joined by '|'."
  )
  metric_comp: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  top_k: Positive = setting(1, "How many of the best weights stay in the folder; its record ranks them.")
  min_gain: NonNegative = setting(
    0.0, "By how much a value must be better than the one whose place it takes, in units of the metric."
  )
  ties: Ties = setting(
    "first", "Which of equal values ranks higher: the first one stays the best, or the last one becomes it."
  )
