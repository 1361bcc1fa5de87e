"""Optimizers, learning rates, warm-up, groups, averaging: every setting of an update, from one place."""

import dataclasses

from official_trainer.config.durations import Steps
from official_trainer.config.fields import Fraction, setting
from official_trainer.optim.config_learning_rate import (
  ConstantLrConfig,
  CosineLrConfig,
  DirectPowerLrConfig,
  ExponentialLrConfig,
  LinearWarmupConfig,
  LrConfig,
  PolynomialLrConfig,
  PolynomialWarmupConfig,
  PowerAndLinearDecayLrConfig,
  PowerDecayWithOffsetLrConfig,
  StepCosineLrConfig,
  StepwiseLrConfig,
  WarmupConfig,
)
from official_trainer.optim.config_optimizers import (
  AdafactorConfig,
  AdafactorKerasConfig,
  AdagradConfig,
  AdamConfig,
  AdamExperimentalConfig,
  AdamWConfig,
  AdamWExperimentalConfig,
  Clipping,
  LambConfig,
  LarsConfig,
  OptimizerConfig,
  RmsPropConfig,
  SgdConfig,
  SgdExperimentalConfig,
  SlideConfig,
)
from official_trainer.optim.config_schedules import (
  FACTORS,
  CosineScheduleConfig,
  CustomScheduleConfig,
  ExponentialScheduleConfig,
  LinearScheduleConfig,
  MultiFactorScheduleConfig,
  PlateauScheduleConfig,
  PolynomialScheduleConfig,
  ScheduleConfig,
  StepwiseScheduleConfig,
)
from official_trainer.optim.config_updates import (
  DEFAULT_GROUP,
  BatchNormConfig,
  CentralizeConfig,
  ClipByGlobalNormConfig,
  ClipByNormConfig,
  ClipByValueConfig,
  CustomTransformConfig,
  GradientNoiseConfig,
  GradientTransformConfig,
  ParamGroupConfig,
)

__all__ = [
  "AdafactorConfig",
  "AdafactorKerasConfig",
  "AdagradConfig",
  "AdamConfig",
  "AdamExperimentalConfig",
  "AdamWConfig",
  "AdamWExperimentalConfig",
  "BatchNormConfig",
  "CentralizeConfig",
  "ClipByGlobalNormConfig",
  "ClipByNormConfig",
  "ClipByValueConfig",
  "Clipping",
  "ConstantLrConfig",
  "CosineLrConfig",
  "CosineScheduleConfig",
  "CustomScheduleConfig",
  "CustomTransformConfig",
  "DEFAULT_GROUP",
  "DirectPowerLrConfig",
  "FACTORS",
  "EmaConfig",
  "ExponentialLrConfig",
  "ExponentialScheduleConfig",
  "GradientNoiseConfig",
  "GradientTransformConfig",
  "LambConfig",
  "LarsConfig",
  "LinearScheduleConfig",
  "LinearWarmupConfig",
  "LrConfig",
  "MultiFactorScheduleConfig",
  "OptimizationConfig",
  "OptimizerConfig",
  "ParamGroupConfig",
  "PlateauScheduleConfig",
  "PolynomialLrConfig",
  "PolynomialScheduleConfig",
  "PolynomialWarmupConfig",
  "PowerAndLinearDecayLrConfig",
  "PowerDecayWithOffsetLrConfig",
  "RmsPropConfig",
  "ScheduleConfig",
  "SgdConfig",
  "SgdExperimentalConfig",
  "SlideConfig",
  "StepCosineLrConfig",
  "StepwiseLrConfig",
  "StepwiseScheduleConfig",
  "WarmupConfig",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmaConfig:
  """Exponential moving average of the weights, used in evaluation and in the best export.

  The average covers all variables of the model, batch normalisation's statistics too: averaged
  kernels with raw statistics would be a mixture of two models.
  """

  name: str = setting("ExponentialMovingAverage", "Name; kept for Model Garden's sake.")
  average_decay: Fraction = setting(0.99, "Weight of the old average in each update.")
  start_step: Steps = setting(0, "Step at which averaging starts; until then evaluation is of the raw weights.")
  dynamic_decay: bool = setting(
    True,
    "Whether the decay grows at first: min(average_decay, (1 + n) / (10 + n)) at update n.",
  )
  trainable_weights_only: bool = setting(False, "Whether only trainable variables are averaged.")
  clipnorm: float | None = setting(
    None, "A limit on gradients.", only_default="Set the limit on the optimizer instead."
  )
  clipvalue: float | None = setting(
    None, "A limit on gradients.", only_default="Set the limit on the optimizer instead."
  )
  global_clipnorm: float | None = setting(
    None, "A limit on gradients.", only_default="Set the limit on the optimizer instead."
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizationConfig:
  """How weights are updated and averaged."""

  optimizer: OptimizerConfig = setting(text="The optimizer.", factory=OptimizerConfig)
  ema: EmaConfig | None = setting(None, "Averaging of the weights. None: off.")
  learning_rate: LrConfig = setting(text="The learning-rate schedule.", factory=LrConfig)
  warmup: WarmupConfig = setting(text="The start of the schedule.", factory=WarmupConfig)
  legacy: bool = setting(
    False,
    "Whether tf-keras's legacy optimizers are used: slower, and Model Garden reads their slots.",
  )
  param_groups: tuple[ParamGroupConfig, ...] = setting(
    (), "Rules for some of the variables, in order: each variable is in the group of the first rule that matches."
  )
  gradient_transforms: tuple[GradientTransformConfig, ...] = setting(
    (), "What is done to the gradients of the global batch before the optimizer sees them, in order."
  )
