"""Schedules of any scalar of a run: functions of the step, or of the history so far."""

import dataclasses
from typing import Any, Literal

from official_trainer.config.comparison import Comparison
from official_trainer.config.durations import PositiveSteps, Steps
from official_trainer.config.fields import Count, NonNegative, OneOf, Positive, setting

FACTORS = (
  "constant", "linear_warmup", "rsqrt_decay", "rsqrt_normalized_decay", "decay_every", "cosine_decay"
)  # fmt: skip
"""The factors of a multi-factor schedule."""

_FIRST = "Value at `begin_step` and before it. Required."
_LAST = "Value at the end and after it. Required."
_BEGIN = "Step at which the value begins to move."
_LENGTH = "Steps from the first value to the last. Required."


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearScheduleConfig:
  """A straight line from one value to another."""

  first: float | None = setting(None, _FIRST)
  last: float | None = setting(None, _LAST)
  begin_step: Steps = setting(0, _BEGIN)
  num_steps: PositiveSteps | None = setting(None, _LENGTH)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolynomialScheduleConfig(LinearScheduleConfig):
  """A power of the share of steps that is left, from one value to another."""

  power: NonNegative = setting(2.0, "The power; 1 is a straight line.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineScheduleConfig(LinearScheduleConfig):
  """Half a cosine from one value to another (Loshchilov and Hutter, 2017)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialScheduleConfig:
  """A factor every so many steps."""

  first: float | None = setting(None, _FIRST)
  factor: float | None = setting(None, "Factor applied every `num_steps`. Required.")
  begin_step: Steps = setting(0, _BEGIN)
  num_steps: PositiveSteps | None = setting(None, "Steps in which the value changes by `factor`. Required.")
  staircase: bool = setting(False, "Whether the value changes in jumps.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepwiseScheduleConfig:
  """Values in steps."""

  boundaries: tuple[Steps, ...] | None = setting(None, "Steps at which the value changes, rising. Required.")
  values: tuple[float, ...] | None = setting(None, "The values, one more than boundaries. Required.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiFactorScheduleConfig:
  """A product of factors of the step, as Trax has it: 'constant * linear_warmup * rsqrt_decay'."""

  factors: str = setting(
    "constant * linear_warmup * rsqrt_decay",
    "Names joined by '*': constant; linear_warmup: min(1, s / warmup_steps); rsqrt_decay: 1 / sqrt(max(s, "
    "warmup_steps)); rsqrt_normalized_decay: that, times sqrt(warmup_steps); decay_every: decay_factor ** (s // "
    "steps_per_decay); cosine_decay: half a cosine from 1 to 0 every steps_per_cycle after the warm-up.",
  )
  constant: float = setting(1.0, "The factor 'constant'.")
  warmup_steps: PositiveSteps = setting(400, "Length of the warm-up.")
  decay_factor: NonNegative = setting(0.5, "Factor of 'decay_every'.")
  steps_per_decay: PositiveSteps = setting(20_000, "Steps between two factors of 'decay_every'.")
  steps_per_cycle: PositiveSteps = setting(100_000, "Length of a cycle of 'cosine_decay'.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlateauScheduleConfig:
  """A value that is multiplied whenever a metric has stopped getting better. A function of the history alone."""

  metric: str = setting(
    "", "Metric to judge by; parts of nested names, such as the name of an evaluation set, are joined by '|'. Required."
  )
  comparison: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  first: float = setting(1.0, "Value until the first time.")
  factor: NonNegative = setting(0.1, "What the value is multiplied by.")
  patience: Positive = setting(5, "Evaluations in a row without a better value after which that happens.")
  min_delta: NonNegative = setting(0.0, "By how much a value must be better than the best before it to count.")
  cooldown: Count = setting(0, "Evaluations after a change in which none is counted as one without a better value.")
  least: NonNegative = setting(0.0, "The value never falls below this.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomScheduleConfig:
  """A schedule of the user's own, registered by `register_schedule`."""

  name: str = setting("", "Name that it was registered under. Required.")
  arguments: dict[str, Any] = setting(text="Keyword arguments.", factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig(OneOf):
  """How one scalar moves during the run. At update s + 1 its value is the schedule's at step s."""

  type: (
    Literal["linear", "polynomial", "cosine", "exponential", "stepwise", "multi_factor", "plateau", "custom"] | None
  ) = setting(None, "The schedule: the name of one of the fields below.")
  linear: LinearScheduleConfig = setting(text="A straight line.", factory=LinearScheduleConfig)
  polynomial: PolynomialScheduleConfig = setting(text="A power.", factory=PolynomialScheduleConfig)
  cosine: CosineScheduleConfig = setting(text="Half a cosine.", factory=CosineScheduleConfig)
  exponential: ExponentialScheduleConfig = setting(text="A factor every so often.", factory=ExponentialScheduleConfig)
  stepwise: StepwiseScheduleConfig = setting(text="Values in steps.", factory=StepwiseScheduleConfig)
  multi_factor: MultiFactorScheduleConfig = setting(text="Trax's factors.", factory=MultiFactorScheduleConfig)
  plateau: PlateauScheduleConfig = setting(text="Falls on a plateau.", factory=PlateauScheduleConfig)
  custom: CustomScheduleConfig = setting(text="A schedule of one's own.", factory=CustomScheduleConfig)
