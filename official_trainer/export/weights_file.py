"""A Keras file of weights, without anything of an optimizer."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.atomic import is_local, writing
from official_trainer.errors import ExportRefused

FILE = "model.weights.h5"


def write_weights(folder: str, model: tf_keras.Model) -> None:
  """Writes `folder/model.weights.h5`, for `model.load_weights`, and reads it back.

  Args:
    folder: an existing folder.
    model: whose weights, as they are in place now, are written.

  Raises:
    NotWritten: if the file system refuses.
    ExportRefused: if the file does not hold each of the model's variables once, to the bit.
  """
  path = os.path.join(folder, FILE)
  with contextlib.ExitStack() as stack:
    local = path
    if not is_local(path):  # HDF5 writes ordinary files only.
      local = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), FILE)
    with writing(path), _without_optimizer(model):
      model.save_weights(local)
    missing = _values(variable.numpy() for variable in model.variables)
    missing.subtract(_values(_stored(local)))
    if wrong := sum(map(abs, missing.values())):
      raise ExportRefused(path, f"{wrong} of its arrays are not those of the model's {len(model.variables)} variables.")
    if local != path:
      with writing(path):
        tf.io.gfile.copy(local, path)


@contextlib.contextmanager
def _without_optimizer(model: tf_keras.Model) -> Iterator[None]:
  """Takes from a compiled model, for the body, its optimizer: tf-keras would save that as well."""
  optimizer = getattr(model, "optimizer", None)
  if optimizer is None:
    yield
    return
  model.optimizer = None
  try:
    yield
  finally:
    model.optimizer = optimizer


def _stored(path: str) -> list[np.ndarray]:
  """Returns every array of an HDF5 file."""
  import h5py  # Comes with tf-keras, which imports it late as well.

  found: list[np.ndarray] = []

  def visit(name: str, node: Any) -> None:
    del name
    if isinstance(node, h5py.Dataset):
      found.append(np.asarray(node))

  with h5py.File(path, "r") as file:
    file.visititems(visit)
  return found


def _values(arrays: Any) -> collections.Counter:
  """Counts arrays by type, shape and bits."""
  return collections.Counter(
    (str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()) for array in map(np.asarray, arrays)
  )
