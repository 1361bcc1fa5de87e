"""Optimizers, learning rates, warm-up, averaging. Model Garden's names, defaults and meanings."""

import dataclasses
from typing import Any, ClassVar, Literal

from official_trainer.config.durations import PositiveSteps, Steps
from official_trainer.config.fields import (
  AboveZero,
  Count,
  Fraction,
  NonNegative,
  OneOf,
  Share,
  setting,
)

Names = tuple[str, ...] | None
"""Patterns of variable names, or None."""

DEFAULT_GROUP = "default"
"""Name of the group of all variables that no rule of `param_groups` matches."""

_DECAYED = "Patterns of the variables that are decayed. None: all that are not excluded."
_NOT_DECAYED = "Patterns of the variables that are not decayed. None: none."
_NOT_ADAPTED = "Patterns of the variables whose layer-wise scaling is off. None: none."
_EPSILON = "Added to the denominator for numerical stability."
_BETA_1 = "Decay rate of the first moment."
_BETA_2 = "Decay rate of the second moment."
_OFFSET = "Steps by which the schedule starts later."
_FIRST_RATE = "Learning rate at the first step of the schedule. Required."
_DECAY_STEPS = "Length of the schedule in steps. Required."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
  """Limits on gradients, shared by all optimizers."""

  clipnorm: AboveZero | None = setting(None, "Largest L2 norm of each gradient. None: no limit.")
  clipvalue: AboveZero | None = setting(None, "Largest absolute value of a gradient. None: no limit.")
  global_clipnorm: AboveZero | None = setting(
    None, "Largest L2 norm of all gradients together, over the global batch. None: no limit."
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SgdConfig(Clipping):
  """Stochastic gradient descent with optional momentum."""

  name: str = setting("SGD", "Name of the optimizer.")
  decay: NonNegative = setting(0.0, "Inverse-time decay of the learning rate; only with `legacy: true`.")
  nesterov: bool = setting(False, "Whether the momentum is Nesterov's.")
  momentum: Fraction = setting(0.0, "Weight of the past updates.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SgdExperimentalConfig(Clipping):
  """The new tf-keras SGD, whatever `legacy` says."""

  name: str = setting("SGD", "Name of the optimizer.")
  nesterov: bool = setting(False, "Whether the momentum is Nesterov's.")
  momentum: Fraction = setting(0.0, "Weight of the past updates.")
  jit_compile: bool = setting(False, "Whether the update is compiled with XLA.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RmsPropConfig(Clipping):
  """RMSprop."""

  name: str = setting("RMSprop", "Name of the optimizer.")
  rho: Fraction = setting(0.9, "Decay rate of the mean of squared gradients.")
  momentum: Fraction = setting(0.0, "Weight of the past updates.")
  epsilon: NonNegative = setting(1e-7, _EPSILON)
  centered: bool = setting(False, "Whether the variance replaces the mean square.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdagradConfig(Clipping):
  """Adagrad."""

  name: str = setting("Adagrad", "Name of the optimizer.")
  initial_accumulator_value: NonNegative = setting(0.1, "First value of the accumulators.")
  epsilon: NonNegative = setting(1e-7, _EPSILON)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamConfig(Clipping):
  """Adam (Kingma and Ba, 2015)."""

  name: str = setting("Adam", "Name of the optimizer.")
  beta_1: Fraction = setting(0.9, _BETA_1)
  beta_2: Fraction = setting(0.999, _BETA_2)
  epsilon: NonNegative = setting(1e-7, _EPSILON)
  amsgrad: bool = setting(False, "Whether the largest second moment so far is used.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamExperimentalConfig(AdamConfig):
  """The new tf-keras Adam, whatever `legacy` says."""

  jit_compile: bool = setting(False, "Whether the update is compiled with XLA.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamWConfig(AdamConfig):
  """Adam with decoupled weight decay. Exists as a legacy optimizer only."""

  name: str = setting("AdamWeightDecay", "Name of the optimizer.")
  weight_decay_rate: NonNegative = setting(0.0, "Weight decay per unit of learning rate.")
  include_in_weight_decay: Names = setting(None, _DECAYED)
  exclude_from_weight_decay: Names = setting(None, _NOT_DECAYED)
  gradient_clip_norm: NonNegative = setting(1.0, "Largest L2 norm of all gradients together. 0: no limit.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamWExperimentalConfig(AdamConfig):
  """The new tf-keras AdamW."""

  name: str = setting("AdamWeightDecayExperimental", "Name of the optimizer.")
  weight_decay: NonNegative = setting(0.0, "Weight decay per unit of learning rate.")
  global_clipnorm: AboveZero | None = setting(1.0, "Largest L2 norm of all gradients together. None: no limit.")
  jit_compile: bool = setting(False, "Whether the update is compiled with XLA.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LambConfig(Clipping):
  """LAMB, layer-wise adaptive moments for large batches. Exists as a legacy optimizer only."""

  name: str = setting("LAMB", "Name of the optimizer.")
  beta_1: Fraction = setting(0.9, _BETA_1)
  beta_2: Fraction = setting(0.999, _BETA_2)
  epsilon: NonNegative = setting(1e-6, _EPSILON)
  weight_decay_rate: NonNegative = setting(0.0, "Weight decay.")
  exclude_from_weight_decay: Names = setting(None, _NOT_DECAYED)
  exclude_from_layer_adaptation: Names = setting(None, _NOT_ADAPTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LarsConfig(Clipping):
  """LARS, layer-wise adaptive rate scaling. Exists as a legacy optimizer only."""

  name: str = setting("LARS", "Name of the optimizer.")
  momentum: Fraction = setting(0.9, "Weight of the past updates.")
  eeta: NonNegative = setting(0.001, "The trust coefficient of the paper.")
  weight_decay_rate: NonNegative = setting(0.0, "Weight decay.")
  nesterov: bool = setting(False, "Whether the momentum is Nesterov's.")
  classic_momentum: bool = setting(True, "Whether the rate is applied inside the momentum.")
  exclude_from_weight_decay: Names = setting(None, _NOT_DECAYED)
  exclude_from_layer_adaptation: Names = setting(None, _NOT_ADAPTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlideConfig(LambConfig):
  """SLIDE. Model Garden published its settings, not the optimizer."""

  name: str = setting("SLIDE", "Name of the optimizer.")
  weight_decay_type: str = setting("inner", "Where the decay is applied.")
  include_in_sparse_layer_adaptation: Names = setting(None, "Patterns of the sparse layers.")
  sparse_layer_learning_rate: NonNegative = setting(0.1, "Learning rate of the sparse layers.")
  do_gradient_rescaling: bool = setting(True, "Whether gradients are rescaled.")
  norm_type: str = setting("layer", "Extent of the norms.")
  ratio_clip_norm: NonNegative = setting(1e5, "Largest ratio of norms.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdafactorConfig(Clipping):
  """Adafactor (Shazeer and Stern, 2018). Model Garden published its settings, not the optimizer."""

  name: str = setting("Adafactor", "Name of the optimizer.")
  factored: bool = setting(True, "Whether the second moment is kept as rows and columns.")
  multiply_by_parameter_scale: bool = setting(True, "Whether updates scale with the weights.")
  beta1: Fraction | None = setting(None, "Decay rate of the first moment. None: no momentum.")
  decay_rate: float = setting(0.8, "Exponent of the second moment's decay.")
  step_offset: Count = setting(0, "Steps done before, when fine-tuning.")
  clipping_threshold: NonNegative = setting(1.0, "Largest root mean square of an update.")
  min_dim_size_to_factor: Count = setting(128, "Smallest dimension that is factored.")
  epsilon1: NonNegative = setting(1e-30, "Added to squared gradients.")
  epsilon2: NonNegative = setting(1e-3, "Smallest scale of the weights.")
  weight_decay: NonNegative | None = setting(None, "Weight decay. None: off.")
  include_in_weight_decay: str | None = setting(None, _DECAYED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdafactorKerasConfig(Clipping):
  """The tf-keras Adafactor."""

  name: str = setting("Adafactor", "Name of the optimizer.")
  learning_rate: NonNegative = setting(0.001, "Not used when a learning rate is configured.")
  beta_2_decay: float = setting(-0.8, "Exponent of the second moment's decay.")
  epsilon_1: NonNegative = setting(1e-30, "Added to squared gradients.")
  epsilon_2: NonNegative = setting(1e-3, "Smallest scale of the weights.")
  clip_threshold: NonNegative = setting(1.0, "Largest root mean square of an update.")
  relative_step: bool = setting(True, "Whether a constant learning rate falls with the step.")


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
class OptimizerConfig(OneOf):
  """Which optimizer, and its settings."""

  type: (
    Literal[
      "sgd",
      "sgd_experimental",
      "adam",
      "adam_experimental",
      "adamw",
      "adamw_experimental",
      "lamb",
      "rmsprop",
      "lars",
      "adagrad",
      "slide",
      "adafactor",
      "adafactor_keras",
    ]
    | None
  ) = setting(None, "The optimizer in use: the name of one of the fields below.")
  sgd: SgdConfig = setting(text="Gradient descent.", factory=SgdConfig)
  sgd_experimental: SgdExperimentalConfig = setting(text="The new tf-keras SGD.", factory=SgdExperimentalConfig)
  adam: AdamConfig = setting(text="Adam.", factory=AdamConfig)
  adam_experimental: AdamExperimentalConfig = setting(text="The new tf-keras Adam.", factory=AdamExperimentalConfig)
  adamw: AdamWConfig = setting(text="Adam with weight decay (legacy).", factory=AdamWConfig)
  adamw_experimental: AdamWExperimentalConfig = setting(text="The new tf-keras AdamW.", factory=AdamWExperimentalConfig)
  lamb: LambConfig = setting(text="LAMB (legacy).", factory=LambConfig)
  rmsprop: RmsPropConfig = setting(text="RMSprop.", factory=RmsPropConfig)
  lars: LarsConfig = setting(text="LARS (legacy).", factory=LarsConfig)
  adagrad: AdagradConfig = setting(text="Adagrad.", factory=AdagradConfig)
  slide: SlideConfig = setting(text="SLIDE (settings only).", factory=SlideConfig)
  adafactor: AdafactorConfig = setting(text="Adafactor (settings only).", factory=AdafactorConfig)
  adafactor_keras: AdafactorKerasConfig = setting(text="The tf-keras Adafactor.", factory=AdafactorKerasConfig)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamGroupConfig:
  """How some of the trainable variables are updated."""

  pattern: str = setting("", "Regular expression, searched in the paths of the trainable variables. Required.")
  name: str = setting("", "Name of the group in tables, curves and schedules. Empty: the pattern.")
  lr_multiplier: NonNegative = setting(
    1.0, "Factor on the update, decay included, after the optimizer's rule: that of a learning rate of its own."
  )
  layer_decay: Share | None = setting(
    None,
    "Factor on the update for each layer below the highest. The pattern's first group is the layer's number, 0 nearest "
    "to the input; of n layers, layer i is multiplied by layer_decay ** (n - i), and what matches without a number by "
    "layer_decay ** (n + 1). None: off.",
  )
  weight_decay: NonNegative | None = setting(
    None,
    "Weight decay in place of the optimizer's own. 0: none. For optimizers without one of their own it is decoupled: "
    "weights lose learning rate x weight_decay x weight before the update. None: the optimizer's.",
  )
  frozen: bool = setting(False, "Whether these variables keep their values: no gradient, no slots, no decay.")
  optimizer: OptimizerConfig | None = setting(None, "An optimizer of their own. None: the one of all.")
  learning_rate: LrConfig | None = setting(None, "Learning rate of the optimizer of their own. None: that of all.")
  warmup: WarmupConfig | None = setting(None, "Warm-up of the optimizer of their own. None: that of all.")

  @property
  def label(self) -> str:
    """The name of the group."""
    return self.name or self.pattern


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchNormConfig:
  """Which layers of batch normalisation are frozen. Patterns are searched in the layers' paths."""

  freeze_statistics: tuple[str, ...] = setting(
    (), "Layers that normalise by their stored statistics in training, too, and do not move them."
  )
  freeze_affine: tuple[str, ...] = setting((), "Layers whose gamma and beta keep their values.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipByGlobalNormConfig:
  """All gradients are scaled down together where their joint L2 norm is larger than `norm`."""

  norm: AboveZero = setting(1.0, "Largest joint L2 norm.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipByNormConfig:
  """Each gradient is scaled down where its L2 norm is larger than `norm`."""

  norm: AboveZero = setting(1.0, "Largest L2 norm of each gradient.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipByValueConfig:
  """Every component is cut to [-value, value]."""

  value: AboveZero = setting(1.0, "Largest absolute value.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientNoiseConfig:
  """Gaussian noise with variance eta / (1 + step) ** gamma (Neelakantan et al., 2015), from the run's seed and step."""

  eta: NonNegative = setting(0.01, "Variance at step 0.")
  gamma: NonNegative = setting(0.55, "How fast the variance falls.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralizeConfig:
  """The mean over all but the last dimension is taken off gradients of two or more (Yong et al., 2020)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomTransformConfig:
  """A function of the user's own, registered by `register_gradient_transform`."""

  name: str = setting("", "Name that it was registered under. Required.")
  arguments: dict[str, Any] = setting(text="Keyword arguments.", factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientTransformConfig(OneOf):
  """One transformation of the gradients of the global batch."""

  type: Literal["clip_by_global_norm", "clip_by_norm", "clip_by_value", "noise", "centralize", "custom"] | None = (
    setting(None, "The transformation: the name of one of the fields below.")
  )
  clip_by_global_norm: ClipByGlobalNormConfig = setting(text="Joint norm.", factory=ClipByGlobalNormConfig)
  clip_by_norm: ClipByNormConfig = setting(text="Norm of each.", factory=ClipByNormConfig)
  clip_by_value: ClipByValueConfig = setting(text="Components.", factory=ClipByValueConfig)
  noise: GradientNoiseConfig = setting(text="Added noise.", factory=GradientNoiseConfig)
  centralize: CentralizeConfig = setting(text="Mean taken off.", factory=CentralizeConfig)
  custom: CustomTransformConfig = setting(text="A function of one's own.", factory=CustomTransformConfig)


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
