"""What to say when a run goes on with another number of replicas."""

from __future__ import annotations

from collections.abc import Iterator

import tf_keras

from official_trainer.errors import first_of
from official_trainer.random_state import StepKeyedRandom


def change_of_replicas(before: int, now: int, model: tf_keras.Model) -> str | None:
  """Returns a line about what stays the same and what does not, or None if the number is the same.

  Args:
    before: number of replicas that wrote the checkpoint.
    now: number of replicas of this process's strategy.
    model: the run's model.
  """
  if before == now:
    return None
  text = f"goes on with {now} replica{'s' if now > 1 else ''}, before it had {before}: the same global batches"
  if own := list(_of_replicas(model)):
    return (
      f"{text}; the losses will not be quite those of an unchanged run, since {' and '.join(own)} belong to replicas"
    )
  return f"{text}, the same losses but for rounding"


def _of_replicas(model: tf_keras.Model) -> Iterator[str]:
  """Yields what a replica has for itself in training."""
  layers = [module for module in model.submodules if isinstance(module, tf_keras.layers.BatchNormalization)]
  if plain := [layer.name for layer in layers if not layer.synchronized]:
    yield f"the statistics of {first_of(plain)} (synchronized=True would make them global)"
  if len(StepKeyedRandom(model, seed=0)):
    yield "random masks"
