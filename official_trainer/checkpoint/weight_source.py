"""Files of weights behind one interface: what is in them, under which names, and a way to read each value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint import keras_file, manifest, object_names
from official_trainer.checkpoint.init_plan import Value
from official_trainer.checkpoint.init_report import Spec
from official_trainer.checkpoint.locate import find_checkpoint
from official_trainer.checkpoint.stored import stored_shapes
from official_trainer.errors import ConfigError

PathsOf = Callable[[tf_keras.Model], Sequence[tuple[str, tf.Variable]]]
"""Names every variable of a model by its path in it."""


class WeightSource:
  """An opened file of weights."""

  def __init__(self, values: Sequence[Value], read: Callable[[str], np.ndarray]):
    """Stores what is in the file, and how a value is read by its key."""
    self.values = values
    self._read = read

  def read(self, value: Value) -> np.ndarray:
    return self._read(value.key)


def locate_source(path: str, key: str) -> tuple[str, str]:
  """Finds what a path means.

  Args:
    path: a checkpoint's prefix or folder, a SavedModel's folder, or a Keras file.
    key: the setting that holds the path, for errors.

  Returns:
    (kind, path): "checkpoint" with a prefix, "keras" or "h5" with a file.

  Raises:
    ConfigError: if there is nothing, or nothing that can be read.
  """
  if (prefix := find_checkpoint(path)) is not None:
    return "checkpoint", prefix
  if tf.io.gfile.isdir(path):
    inner = f"{path.rstrip('/')}/variables/variables"
    if tf.io.gfile.exists(f"{inner}.index"):
      return "checkpoint", inner
    raise ConfigError.of(key, f"there is no checkpoint and no SavedModel in the folder {path!r}.")
  if not tf.io.gfile.exists(path):
    raise ConfigError.of(
      key, f"there is nothing at {path!r}. Give a checkpoint (prefix or folder), a SavedModel folder or a Keras file."
    )
  for kind, endings in (("keras", (".keras",)), ("h5", (".h5", ".hdf5"))):
    if path.endswith(endings):
      return kind, path
  raise ConfigError.of(
    key,
    f"{path!r} is none of the files that can be read: `.keras`, `.h5`, `.weights.h5`, or a TensorFlow checkpoint, which"
    " is named by what its files have in common before `.index`.",
  )


@contextlib.contextmanager
def open_source(
  path: str,
  key: str,
  *,
  averages: bool = False,
  guide: tf_keras.layers.Layer | None = None,
  guide_paths: Mapping[int, str] | None = None,
  paths_of: PathsOf,
) -> Iterator[WeightSource]:
  """Opens a file of weights.

  Args:
    path: see `locate_source`.
    key: the setting it comes from, without ".checkpoint".
    averages: whether averages stand in place of the raw weights that have one.
    guide: a built model, or a part of one, with the same layout as the one that was saved, if there is any: values of
      formats without full names are named as the variables at the same place in it.
    guide_paths: id of each variable of `guide` -> its name.
    paths_of: names the variables of a whole model that is read from a `.keras` file.

  Raises:
    ConfigError: if there is nothing that can be read, or no averages where they are asked for.
    BrokenCheckpoint: if it is one of our checkpoints and damaged.
  """
  kind, found = locate_source(path, f"{key}.checkpoint")
  if averages and kind != "checkpoint":
    raise ConfigError.of(f"{key}.averages", f"a Keras file holds no averages: {path!r}.")
  if kind == "checkpoint":
    yield _open_checkpoint(found, key, averages, guide, guide_paths or {})
  elif kind == "keras":
    weights = dict(keras_file.read_model(found, f"{key}.checkpoint", paths_of))
    values = [Value((name,), Spec(value.shape, value.dtype.name), name) for name, value in weights.items()]
    yield WeightSource(values, weights.__getitem__)
  else:
    with keras_file.opened(found, f"{key}.checkpoint") as file:
      values = keras_file.values_of(file, guide, guide_paths or {})
      yield WeightSource(values, lambda place: np.asarray(file[place]))


def _open_checkpoint(
  prefix: str, key: str, averages: bool, guide: tf_keras.layers.Layer | None, guide_paths: Mapping[int, str]
) -> WeightSource:
  if tf.io.gfile.exists(manifest.manifest_path(prefix)):
    manifest.verify(prefix)
  reader = tf.train.load_checkpoint(prefix)
  shapes, types = stored_shapes(prefix), reader.get_variable_to_dtype_map()
  graph = object_names.read_graph(reader)
  if graph is None:
    names = {name: (name,) for name in sorted(shapes)}
  else:
    names = object_names.names_of(graph, guide, guide_paths)
  stand_ins: dict[str, str] = {}
  if averages:
    setting = f"{key}.averages"
    stand_ins = {} if graph is None else object_names.averages_of(graph, setting)
    if not stand_ins:
      raise ConfigError.of(
        setting, f"there are none in {prefix}. A best export holds averages as its weights; false takes the weights."
      )
  values = [
    Value(called, Spec(tuple(shapes[stored]), types[stored].name), stand_ins.get(stored, stored))
    for stored, called in names.items()
    if stored in shapes and types[stored] != tf.string
  ]
  return WeightSource(values, reader.get_tensor)
