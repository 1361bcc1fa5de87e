"""Learning rates and warm-up. Model Garden's names, defaults and meanings."""

import dataclasses
from typing import ClassVar, Literal

from official_trainer.config.durations import PositiveSteps, Steps
from official_trainer.config.fields import Fraction, OneOf, setting

_OFFSET = "Steps by which the schedule starts later."
_FIRST_RATE = "Learning rate at the first step of the schedule. Required."
_DECAY_STEPS = "Length of the schedule in steps. Required."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantLrConfig:
  """The same learning rate at every step."""

  name: str = setting("Constant", "Name of the schedule.")
  learning_rate: float = setting(0.1, "The learning rate.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepwiseLrConfig:
  """values[0] up to and including step boundaries[0], then values[1], and so on."""

  name: str = setting("PiecewiseConstantDecay", "Name of the schedule.")
  boundaries: tuple[Steps, ...] | None = setting(None, "Steps at which the rate changes, rising. Required.")
  values: tuple[float, ...] | None = setting(None, "Learning rates, one more than boundaries. Required.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialLrConfig:
  """initial_learning_rate * decay_rate ^ (step / decay_steps)."""

  name: str = setting("ExponentialDecay", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  decay_steps: PositiveSteps | None = setting(None, "Steps in which the rate falls by `decay_rate`. Required.")
  decay_rate: float | None = setting(None, "Factor applied every `decay_steps`. Required.")
  staircase: bool | None = setting(None, "Whether the rate falls in jumps. None: smoothly.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolynomialLrConfig:
  """From initial_ to end_learning_rate along a power of the remaining share of steps."""

  name: str = setting("PolynomialDecay", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  decay_steps: PositiveSteps | None = setting(None, _DECAY_STEPS)
  end_learning_rate: float = setting(0.0001, "Learning rate at the end of the schedule and after it.")
  power: float = setting(1.0, "The power; 1 is a straight line.")
  cycle: bool = setting(False, "Whether the schedule starts again after its end.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineLrConfig:
  """Half a cosine from initial_learning_rate to alpha times it."""

  name: str = setting("CosineDecay", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  decay_steps: PositiveSteps | None = setting(None, _DECAY_STEPS)
  alpha: float = setting(0.0, "Last learning rate, as a share of the first.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectPowerLrConfig:
  """initial_learning_rate * step ^ power."""

  name: str = setting("DirectPowerDecay", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  power: float = setting(-0.5, "The power; -0.5 is the inverse square root.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerAndLinearDecayLrConfig:
  """A power of the step that also falls in a straight line to 0 in the last share of the steps."""

  name: str = setting("PowerAndLinearDecay", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  total_decay_steps: PositiveSteps | None = setting(None, "Step at which the rate reaches 0. Required.")
  power: float = setting(-0.5, "The power of the step.")
  linear_decay_fraction: Fraction = setting(0.1, "Share of the steps with the fall to 0.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerDecayWithOffsetLrConfig:
  """A fixed rate before `offset`, then initial_learning_rate * (step - offset) ^ power."""

  name: str = setting("PowerDecayWithOffset", "Name of the schedule.")
  initial_learning_rate: float | None = setting(None, _FIRST_RATE)
  power: float = setting(-0.5, "The power of the steps after the offset.")
  offset: Steps = setting(0, "Step at which the decay starts.")
  pre_offset_learning_rate: float = setting(1.0e6, "Learning rate before `offset`.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCosineLrConfig:
  """Cosine pieces: from values[i] to values[i + 1] between two boundaries, the last one to 0."""

  name: str = setting("StepCosineDecayWithOffset", "Name of the schedule.")
  boundaries: tuple[Steps, ...] | None = setting(None, "Steps at which the pieces meet, rising. Required.")
  values: tuple[float, ...] | None = setting(None, "Learning rates at the joints. Required.")
  offset: Steps = setting(0, _OFFSET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearWarmupConfig:
  """A straight line from warmup_learning_rate to the schedule's value at the end of the warm-up."""

  name: str = setting("linear", "Name of the warm-up.")
  warmup_learning_rate: float = setting(0.0, "Learning rate at step 0.")
  warmup_steps: Steps | None = setting(None, "Length in steps. Required.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolynomialWarmupConfig:
  """The schedule's value times (step / warmup_steps) ^ power."""

  name: str = setting("polynomial", "Name of the warm-up.")
  power: float = setting(1.0, "The power; 1 is a straight line.")
  warmup_steps: Steps | None = setting(None, "Length in steps. Required.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LrConfig(OneOf):
  """Which learning-rate schedule, and its settings. Steps are completed updates. A number alone is a constant rate."""

  shorthand: ClassVar[tuple[str, str] | None] = ("constant", "learning_rate")
  type: (
    Literal[
      "constant",
      "stepwise",
      "exponential",
      "polynomial",
      "cosine",
      "power",
      "power_linear",
      "power_with_offset",
      "step_cosine_with_offset",
    ]
    | None
  ) = setting(None, "The schedule in use: the name of one of the fields below.")
  constant: ConstantLrConfig = setting(text="One value.", factory=ConstantLrConfig)
  stepwise: StepwiseLrConfig = setting(text="Values in steps.", factory=StepwiseLrConfig)
  exponential: ExponentialLrConfig = setting(text="Exponential decay.", factory=ExponentialLrConfig)
  polynomial: PolynomialLrConfig = setting(text="Polynomial decay.", factory=PolynomialLrConfig)
  cosine: CosineLrConfig = setting(text="Half a cosine.", factory=CosineLrConfig)
  power: DirectPowerLrConfig = setting(text="A power of the step.", factory=DirectPowerLrConfig)
  power_linear: PowerAndLinearDecayLrConfig = setting(
    text="A power of the step, then a line to 0.", factory=PowerAndLinearDecayLrConfig
  )
  power_with_offset: PowerDecayWithOffsetLrConfig = setting(
    text="A power of the steps after an offset.", factory=PowerDecayWithOffsetLrConfig
  )
  step_cosine_with_offset: StepCosineLrConfig = setting(text="Pieces of cosines.", factory=StepCosineLrConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupConfig(OneOf):
  """How the learning rate starts. A duration alone, such as `warmup: 5%`, is a straight line of that length."""

  shorthand: ClassVar[tuple[str, str] | None] = ("linear", "warmup_steps")
  type: Literal["linear", "polynomial"] | None = setting(
    None, "The warm-up in use: the name of one of the fields below, or null."
  )
  linear: LinearWarmupConfig = setting(text="A straight line.", factory=LinearWarmupConfig)
  polynomial: PolynomialWarmupConfig = setting(text="A power of the step.", factory=PolynomialWarmupConfig)
