"""What happens between gradients and variables: groups, frozen layers, transformations."""

import dataclasses
from typing import Any, Literal

from official_trainer.config.fields import AboveZero, NonNegative, OneOf, Share, setting
from official_trainer.optim.config_learning_rate import LrConfig, WarmupConfig
from official_trainer.optim.config_optimizers import OptimizerConfig

DEFAULT_GROUP = "default"
"""Name of the group of all variables that no rule of `param_groups` matches."""


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
