"""Settings of writers that are asked for."""

import dataclasses
from typing import Literal

from official_trainer.config.fields import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class WandbConfig:
  """How a run appears in Weights & Biases."""

  project: str | None = setting(None, "The project. None: what WANDB_PROJECT or your W&B settings say.")
  entity: str | None = setting(None, "User or team. None: what WANDB_ENTITY or your W&B settings say.")
  name: str | None = setting(None, "Name of the run. None: the name of model_dir.")
  tags: tuple[str, ...] = setting((), "Tags of the run.")
  mode: Literal["online", "offline", "disabled"] | None = setting(
    None, "offline writes files for `wandb sync`. None: what WANDB_MODE says, else online."
  )
