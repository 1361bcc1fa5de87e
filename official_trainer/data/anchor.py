"""Where an input was when its batch size last changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anchor:
  """Where in the stream a run was when its batch size last changed.

  Attributes:
    batch: the number of batches that had gone by at that time (see `data.skipped`).
    position: the number of examples in them.
    global_batch_size: examples a batch since.
  """

  batch: int
  position: int
  global_batch_size: int

  @classmethod
  def start(cls, global_batch_size: int) -> Anchor:
    """Returns the anchor of a fresh run."""
    return cls(batch=0, position=0, global_batch_size=global_batch_size)

  def position_at(self, batch: int) -> int:
    """Returns how many examples of the stream come before this batch."""
    if batch < self.batch:
      raise ValueError(
        f"The input is anchored at batch {self.batch}, before which batches had another size, got batch {batch}."
      )
    return self.position + (batch - self.batch) * self.global_batch_size

  def moved(self, batch: int, new_batch_size: int) -> Anchor:
    """Returns the anchor of a run that goes on from `batch` with another batch size.

    No example is left out or repeated.
    """
    return Anchor(batch=batch, position=self.position_at(batch), global_batch_size=new_batch_size)

  def to_json(self) -> dict[str, int]:
    """Returns the anchor as a JSON object."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, values: Mapping[str, int]) -> Anchor:
    """Reads what `to_json` returned."""
    return cls(**{field.name: int(values[field.name]) for field in dataclasses.fields(cls)})
