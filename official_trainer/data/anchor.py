"""Where an input was when its batch size last changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anchor:
  """Where in the stream a run was when its batch size last changed.

  Attributes:
    step: the number of completed updates at that time.
    position: the number of examples consumed by them.
    global_batch_size: examples a step since.
  """

  step: int
  position: int
  global_batch_size: int

  @classmethod
  def start(cls, global_batch_size: int) -> Anchor:
    """Returns the anchor of a fresh run."""
    return cls(step=0, position=0, global_batch_size=global_batch_size)

  def position_at(self, step: int) -> int:
    """Returns how many examples were consumed when `step` updates were completed."""
    if step < self.step:
      raise ValueError(
        f"The input is anchored at step {self.step}, before which batches had another size, got step {step}."
      )
    return self.position + (step - self.step) * self.global_batch_size

  def moved(self, step: int, new_batch_size: int) -> Anchor:
    """Returns the anchor of a run that goes on from `step` with another batch size.

    No example is left out or repeated.
    """
    return Anchor(step=step, position=self.position_at(step), global_batch_size=new_batch_size)

  def to_json(self) -> dict[str, int]:
    """Returns the anchor as a JSON object."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, values: Mapping[str, int]) -> Anchor:
    """Reads what `to_json` returned."""
    return cls(**{field.name: int(values[field.name]) for field in dataclasses.fields(cls)})
