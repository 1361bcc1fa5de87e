"""Settings of what is looked at while a run goes on."""

import dataclasses
from typing import Literal

from official_trainer.config.fields import Count, setting

GraphDump = Literal["none", "text", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
  """When inner loops are recorded with TensorFlow's profiler, into `model_dir/profile`."""

  steps: tuple[Count, Count] | None = setting(
    None,
    "[first, end]: what happens from step `first` to step `end` is recorded, so end - first updates. None: nothing is. "
    "A `first` after the first inner loop keeps compilation out.",
  )
  on_demand_steps: Count = setting(
    5,
    "How many steps are recorded when a file named PROFILE appears in model_dir; it is looked for before each inner "
    "loop, and removed. 0: it is not looked for.",
  )
