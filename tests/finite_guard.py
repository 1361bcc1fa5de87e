"""Looks into every checkpoint and best export that any test writes: none may hold a value that is not finite."""

import functools
import sys

import numpy as np

_STORE = "official_trainer.checkpoint.store"


def install() -> None:
  """Wraps what commits checkpoints, once it is imported. Call before each test."""
  if _STORE not in sys.modules:
    return
  from official_trainer.checkpoint.best_folder import BestFolder

  store = sys.modules[_STORE].CheckpointStore
  if not hasattr(store._commit, "__wrapped__"):
    store._commit = _looking(store._commit, lambda self, step, prefix: prefix)
    BestFolder.write_weights = _looking(
      BestFolder.write_weights, lambda self, model, file: f"{self.path}/{file}", after=True
    )


def _looking(original, prefix_of, *, after=False):
  @functools.wraps(original)
  def look(*args):
    result = original(*args) if after else None
    _require_finite(prefix_of(*args))
    return result if after else original(*args)

  return look


def _require_finite(prefix: str) -> None:
  import tensorflow as tf

  reader = tf.compat.v1.train.NewCheckpointReader(prefix)  # Its successor does not find names on ram://.
  for name, dtype in reader.get_variable_to_dtype_map().items():
    if dtype.is_floating and not np.all(np.isfinite(np.asarray(reader.get_tensor(name), np.float64))):
      raise AssertionError(f"{prefix} holds a value that is not finite: {name}")
