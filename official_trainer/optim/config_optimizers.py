"""Which optimizer, and its settings. Model Garden's names, defaults and meanings."""

import dataclasses
from typing import Literal

from official_trainer.config.fields import AboveZero, Count, Fraction, NonNegative, OneOf, setting

Names = tuple[str, ...] | None
"""Patterns of variable names, or None."""

_DECAYED = "Patterns of the variables that are decayed. None: all that are not excluded."
_NOT_DECAYED = "Patterns of the variables that are not decayed. None: none."
_NOT_ADAPTED = "Patterns of the variables whose layer-wise scaling is off. None: none."
_EPSILON = "Added to the denominator for numerical stability."
_BETA_1 = "Decay rate of the first moment."
_BETA_2 = "Decay rate of the second moment."


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
