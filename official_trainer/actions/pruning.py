"""Keeps pruned weights at zero where a report ends."""

from __future__ import annotations

from collections.abc import Callable

from official_trainer.actions.event import TRAIN, Event


class MaskPruned:
  """After the inner loop that ends a report: applies the masks, so that what is saved there is sparse.

  Reports end on their own grid of steps. Loops that end elsewhere, for a checkpoint or a stop, leave the weights alone:
  otherwise a stop would change what comes after it.
  """

  def __init__(self, mask: Callable[[], None]):
    """Stores the function that applies the masks (`optim.pruning.Pruning.mask`)."""
    self._mask = mask

  def __call__(self, event: Event) -> None:
    if event.mode == TRAIN and event.reports:
      self._mask()
