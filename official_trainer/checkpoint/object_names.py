"""Names for the values of an object-based checkpoint, whose keys say where an object was, not what it was called."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_trainer.checkpoint.stored import VALUE
from official_trainer.errors import ConfigError

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_MODEL = "model"
# Roots of training checkpoints, ours and other programs', that hold no weights.
_NO_WEIGHTS = frozenset(["optimizer", "ema", "host", "global_step", "step", "epoch", "save_counter"])
# Children of a saved Keras model that lead to metrics, functions and slots.
_SIDE_ROADS = frozenset(["keras_api", "signatures", "optimizer"])
_AVERAGES = "ema"
_AVERAGE = "/average"

Graph = trackable_object_graph_pb2.TrackableObjectGraph


def read_graph(reader: Any) -> Graph | None:
  """Returns the object graph that a checkpoint holds, or None for one that is based on names."""
  if not reader.has_tensor(_GRAPH_KEY):
    return None
  graph = Graph()
  graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
  return graph


def names_of(graph: Graph, guide: Any, guide_paths: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
  """Names the values of weights in an object graph.

  A value has up to three names, in this order: the path of the guide's variable that lies at the same place and has the
  same name of its own; the name that its variable had when it was saved, such as "dense/kernel", unless another one had
  the same; and its place, the key without TensorFlow's ending, such as "model/layer_with_weights-0/kernel".

  Where there is a root "model", only what is reached from it is named in the first two ways.

  Args:
    graph: the graph.
    guide: a model, or a part of one, that may have the same layout; or None.
    guide_paths: id of each of its variables -> path.

  Returns:
    key of the value -> its names.
  """
  roots = _children(graph, 0)
  start = roots.get(_MODEL, 0)
  inside = _variables(graph, start)
  others = {node: key for node, key in _variables(graph, 0).items() if node not in inside}
  guided = _guided(graph, [roots[_MODEL]] if _MODEL in roots else [0, *roots.values()], guide, guide_paths)
  places = {node: key.removesuffix(VALUE) for node, key in {**inside, **others}.items()}
  ranks = [
    {node: guided[node] for node in inside if node in guided},
    {node: name for node in inside if (name := _full_name(graph, node))},
    places,
  ]
  names = distinct_names(ranks, places)
  return {key: names[node] or (key,) for node, key in {**inside, **others}.items()}


def distinct_names(ranks: Sequence[Mapping[Any, str]], items: Iterable[Any]) -> dict[Any, tuple[str, ...]]:
  """Gives each item its names, rank by rank; one that a better rank uses, or that two items share, is nobody's.

  Args:
    ranks: item -> name, the best names first.
    items: all items.
  """
  chosen: dict[Any, list[str]] = {item: [] for item in items}
  owners: dict[str, Any] = {}
  for rank in ranks:
    counts = Counter(rank.values())
    for item, name in rank.items():
      if counts[name] == 1 and owners.setdefault(name, item) == item and name not in chosen[item]:
        chosen[item].append(name)
  return {item: tuple(names) for item, names in chosen.items()}


def averages_of(graph: Graph, setting: str) -> dict[str, str]:
  """Maps the key of each weight that has an average to the key of the average. Empty without averages.

  Args:
    graph: the graph of one of our training checkpoints.
    setting: what asks for averages, for errors.

  Raises:
    ConfigError: if two weights have one name, so that their averages cannot be told apart.
  """
  roots = _children(graph, 0)
  if _AVERAGES not in roots:
    return {}
  weights = [(_full_name(graph, node), key) for node, key in _variables(graph, roots.get(_MODEL, 0)).items()]
  counts = Counter(name for name, _ in weights)
  by_name = dict(weights)
  found = {}
  for node, key in _variables(graph, roots[_AVERAGES]).items():
    name = _full_name(graph, node).removesuffix(_AVERAGE)
    if counts[name] > 1:
      raise ConfigError.of(
        setting,
        f"'{name}' is the name of {counts[name]} variables of the checkpoint, whose averages cannot be told apart."
        " Use a best export, which holds averages as its weights.",
      )
    if name in by_name:
      found[by_name[name]] = key
  return found


def _guided(graph: Graph, starts: Sequence[int], guide: Any, guide_paths: Mapping[int, str]) -> dict[int, str]:
  """Walks the saved graph and the guide side by side, and names the saved variables that are those of the guide."""
  found: dict[int, str] = {}
  for start in starts if guide is not None else ():
    seen = {start}
    waiting = deque([(start, guide)])
    while waiting:
      node, mine = waiting.popleft()
      saved = _children(graph, node)
      for name, child in _live_children(mine):
        inner = saved.get(name)
        if inner is None or inner in seen:
          continue
        seen.add(inner)
        path = guide_paths.get(id(child))
        if path is None:
          waiting.append((inner, child))
        elif child.name.partition(":")[0] == _full_name(graph, inner):
          found.setdefault(inner, path)
  return found


def _live_children(trackable: Any) -> Iterator[tuple[str, Any]]:
  if isinstance(trackable, tf.Variable):
    return
  # TensorFlow has no public walk over trackables.
  yield from trackable._trackable_children().items()  # noqa: SLF001


def _children(graph: Graph, node: int) -> dict[str, int]:
  return {child.local_name: child.node_id for child in graph.nodes[node].children}


def _variables(graph: Graph, start: int) -> dict[int, str]:
  """Maps each node with a value that is reached from `start` to the value's key, in the order of the walk."""
  found: dict[int, str] = {}
  roots = _children(graph, 0)
  is_training_state = _MODEL in roots or "save_counter" in roots
  seen = {start}
  waiting = deque([start])
  while waiting:
    node = waiting.popleft()
    for attribute in graph.nodes[node].attributes:
      if attribute.checkpoint_key.endswith(VALUE):
        found[node] = attribute.checkpoint_key
    skipped = _SIDE_ROADS | _NO_WEIGHTS if node == 0 and is_training_state else _SIDE_ROADS
    for name, child in _children(graph, node).items():
      if child not in seen and name not in skipped:
        seen.add(child)
        waiting.append(child)
  return found


def _full_name(graph: Graph, node: int) -> str:
  return next((a.full_name for a in graph.nodes[node].attributes if a.checkpoint_key.endswith(VALUE)), "")
