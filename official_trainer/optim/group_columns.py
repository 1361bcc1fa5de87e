"""What parameter groups say of one variable, in the words of the parameter table."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupColumns:
  """The columns of one variable.

  Attributes:
    group: the name of its group.
    lr_multiplier: factor on the learning rate.
    weight_decay: decay per unit of learning rate; None where the optimizer's own settings decide.
    frozen: whether it is never updated.
  """

  group: str = ""
  lr_multiplier: float = 1.0
  weight_decay: float | None = None
  frozen: bool = False
