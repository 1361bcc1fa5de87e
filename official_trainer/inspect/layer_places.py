"""Where each layer of a model was made: for operations that run when Keras calls the layers of a finished model."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import tf_keras

from official_trainer.inspect.graph_walk import Node
from official_trainer.user_code import Place, user_place

_COUNTER = re.compile(r"_\d+$")


class LayerPlaces:
  """Layers by name, with the line that made each."""

  def __init__(self) -> None:
    self._layers: list[tuple[tf_keras.layers.Layer, Place]] = []

  def add(self, layer: tf_keras.layers.Layer, place: Place) -> None:
    self._layers.append((layer, place))

  def place_of(self, node: Node) -> Place | None:
    """Returns where the innermost layer that an operation's name tells of was made."""
    places = {layer.name: place for layer, place in self._layers if getattr(layer, "name", None)}
    scope, name = node.scope, node.op.name
    while True:
      for part in reversed(name.split("/")[:-1]):
        found = places.get(part) or places.get(_COUNTER.sub("", part))
        if found is not None:
          return found
      if scope.call is None or scope.parent is None:
        return None
      scope, name = scope.parent, scope.call.name


@contextlib.contextmanager
def recorded_layers() -> Iterator[LayerPlaces]:
  """Remembers the line that makes each tf-keras layer, while a model is built."""
  places = LayerPlaces()
  original = tf_keras.layers.Layer.__init__

  def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    frames = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(1)), lookup_lines=False)
    place = user_place(reversed(frames))
    if place is not None and place.is_users:
      places.add(self, place)

  tf_keras.layers.Layer.__init__ = remembering
  try:
    yield places
  finally:
    tf_keras.layers.Layer.__init__ = original
