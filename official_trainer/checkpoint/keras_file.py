"""Keras's own files: what values they hold, and under which names."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.src.saving import saving_lib
from tf_keras.src.utils import generic_utils

from official_trainer.atomic import is_local
from official_trainer.checkpoint.init_plan import Value
from official_trainer.checkpoint.init_report import Spec
from official_trainer.checkpoint.object_names import distinct_names
from official_trainer.errors import ConfigError

_LAYERS = "layer_names"
_WEIGHTS = "weight_names"


@contextlib.contextmanager
def opened(path: str, setting: str) -> Iterator[h5py.File]:
  """Opens an HDF5 file, on any file system.

  Raises:
    ConfigError: if it is no HDF5 file.
  """
  with contextlib.ExitStack() as stack:
    try:
      file = stack.enter_context(h5py.File(path if is_local(path) else io.BytesIO(_content(path)), "r"))
    except OSError as error:
      raise ConfigError.of(setting, f"{path!r} cannot be read as an HDF5 file: {error}") from error
    yield file


def values_of(file: h5py.File, guide: tf_keras.layers.Layer | None, guide_paths: Mapping[int, str]) -> list[Value]:
  """Lists the weights in a `.h5` or `.weights.h5` file.

  `.h5` files name their weights: "dense/kernel", and inside a nested model its name before that. `.weights.h5` files
  know places only, such as "layers/dense/vars/0"; where the guide has a variable at the same place, the value has its
  path as the first name.

  Args:
    file: the opened file.
    guide: a model, or a part of one, that may have the same layout; or None.
    guide_paths: id of each of its variables -> path.
  """
  group = file.get("model_weights", file)
  if _LAYERS in group.attrs or f"{_LAYERS}0" in group.attrs:
    named = _named(group)
    ranks = [{key: _path(layer, name) for key, (layer, name) in named.items()}]
    ranks.append({key: f"{layer}/{name}" for key, (layer, name) in named.items()})
    keys: Sequence[str] = list(named)
  else:
    keys = _datasets(file)
    places = {} if guide is None else dict(_places(guide))
    ranks = [{key: guide_paths[places[key]] for key in keys if places.get(key) in guide_paths}]
    ranks.append({key: key for key in keys})
  names = distinct_names(ranks, keys)
  return [Value(names[key], Spec(tuple(file[key].shape), file[key].dtype.name), key) for key in keys if names[key]]


def read_model(
  path: str, setting: str, paths_of: Callable[[tf_keras.Model], Sequence[tuple[str, tf.Variable]]]
) -> list[tuple[str, np.ndarray]]:
  """Returns the weights of the model in a `.keras` file, by their paths in it.

  Raises:
    ConfigError: if the model cannot be built again.
  """

  def load() -> list[tuple[str, np.ndarray]]:
    with tf.device("CPU:0"):
      model = tf_keras.models.load_model(path, compile=False)
    return [(name, variable.numpy()) for name, variable in paths_of(model)]

  # The strategy in scope, which would replicate that model too, is a matter of this thread.
  with concurrent.futures.ThreadPoolExecutor(max_workers=1) as outside:
    try:
      return outside.submit(load).result()
    except (ValueError, TypeError, OSError) as error:
      raise ConfigError.of(
        setting,
        f"the model in {path!r} cannot be built: {error}\n"
        "Classes of your own must be registered with tf_keras.utils.register_keras_serializable in the task's module.",
      ) from error


def _content(path: str) -> bytes:
  with tf.io.gfile.GFile(path, "rb") as file:
    return bytes(file.read())


def _named(group: h5py.Group) -> dict[str, tuple[str, str]]:
  """Maps the place of each weight in a file with names to (layer, name of the weight)."""
  layers = _texts(group, _LAYERS)
  layers += ["top_level_model_weights"] if "top_level_model_weights" in group else []
  return {
    f"{group[layer].name}/{weight}": (layer, weight.partition(":")[0])
    for layer in layers
    for weight in _texts(group[layer], _WEIGHTS)
  }


def _texts(group: h5py.Group, name: str) -> list[str]:
  """Reads a list of texts, which Keras divides where it is too long for one attribute."""
  parts = [name] if name in group.attrs else []
  while not parts[:1] == [name] and f"{name}{len(parts)}" in group.attrs:
    parts.append(f"{name}{len(parts)}")
  texts = [text for part in parts for text in group.attrs[part]]
  return [text.decode() if isinstance(text, bytes) else str(text) for text in texts]


def _path(layer: str, name: str) -> str:
  """Returns the path of a weight in its model, from the layer of the model it belongs to and its own name.

  The own name begins with the layer's, with a subclassed model's name before it, or, for layers of a nested model,
  with that of the inner layer.
  """
  if layer == "top_level_model_weights":
    return name.rpartition("/")[2]
  _, found, rest = f"/{name}".partition(f"/{layer}/")
  return f"{layer}/{rest if found else name}"


def _datasets(file: h5py.File) -> list[str]:
  found: list[str] = []
  file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
  return [name for name in found if not name.startswith(("optimizer/", "_optimizer/"))]


def _places(guide: tf_keras.layers.Layer) -> Iterator[tuple[str, int]]:
  """Yields (place in a `.weights.h5` file, id) of each variable of a model, in the way Keras walks it to write it."""
  seen: set[int] = set()

  def walk(item: Any, place: str) -> Iterator[tuple[str, int]]:
    if id(item) in seen:
      return
    seen.add(id(item))
    if isinstance(item, tf_keras.layers.Layer):
      own = [*item._trainable_weights, *item._non_trainable_weights]  # noqa: SLF001  # As `save_own_variables` does.
      yield from ((f"{place}vars/{index}", id(variable)) for index, variable in enumerate(own))
    for name, child in saving_lib._walk_trackable(item):  # noqa: SLF001  # What a place is called is known only there.
      if saving_lib._is_keras_trackable(child):  # noqa: SLF001
        yield from walk(child, f"{place}{name}/")
      elif isinstance(child, list | dict | tuple | set):
        yield from inside(child, f"{place}{name}/")

  def inside(container: Any, place: str) -> Iterator[tuple[str, int]]:
    used: dict[str, int] = {}
    for child in container.values() if isinstance(container, dict) else container:
      if not saving_lib._is_keras_trackable(child) or id(child) in seen:  # noqa: SLF001
        continue
      name = generic_utils.to_snake_case(type(child).__name__)
      used[name] = used.get(name, -1) + 1
      yield from walk(child, f"{place}{name}_{used[name]}/" if used[name] else f"{place}{name}/")

  yield from walk(guide, "")
