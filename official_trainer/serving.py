"""Serving signatures: functions of named tensors, with a free batch dimension."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

DEFAULT_SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
"""The name under which a server looks for a signature: "serving_default"."""

INPUTS = "inputs"
OUTPUTS = "outputs"


def input_spec(model: tf_keras.Model) -> Any:
  """Returns what a model takes: the structure of its first argument, a `tf.TensorSpec` [None, ...] for each tensor.

  Raises:
    ValueError: if the model does not know; a subclass of `tf_keras.Model` does from its first call on.
  """
  known = model.save_spec(dynamic_batch=True) if isinstance(model, tf_keras.Model) else None
  if known is None:
    raise ValueError(
      f"{type(model).__name__} does not say what it takes. Call it once in build_model(), e.g. on tf.zeros([1, ...]),"
      " or override serving_signatures() in the task."
    )
  return tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), known[0][0])


def serving_function(infer: Callable[[Any], Any], spec: Any) -> Any:
  """Returns a `tf.function` from named tensors to named tensors, to be used as a signature.

  Args:
    infer: from features, structured as `spec`, to outputs: tensors, nested in any way.
    spec: a structure of `tf.TensorSpec`.

  Returns:
    A function of one dictionary. Its names are those of `named`: a single tensor is "inputs" or "outputs".
  """
  specs = {
    name: tf.TensorSpec(leaf.shape, leaf.dtype, name=name) for name, leaf in named(spec, INPUTS).items()
  }  # In the order of the flat structure.

  @tf.function(input_signature=[specs], autograph=False)
  def serve(tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    outputs = infer(_structured(spec, [tensors[name] for name in specs]))
    return {name: tf.convert_to_tensor(leaf) for name, leaf in named(outputs, OUTPUTS).items()}

  return serve


def named(structure: Any, name: str) -> dict[str, Any]:
  """Gives each leaf of a structure a name: its keys and positions, joined by "_".

  Args:
    structure: dictionaries, lists and tuples of leaves; None is left out.
    name: of a structure that is a single leaf, and what the names of a list or tuple begin with.

  Raises:
    ValueError: if two leaves would have the same name.
  """
  found: dict[str, Any] = {}

  def visit(node: Any, path: str) -> None:
    if node is None:
      return
    if isinstance(node, Mapping):
      items = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
      items = list(zip(node._fields, node, strict=True))
    elif isinstance(node, list | tuple):
      path = path or name
      items = [(str(index), value) for index, value in enumerate(node)]
    else:
      key = path or name
      if key in found:
        raise ValueError(f"two tensors would have the name {key!r}. Rename one of them.")
      found[key] = node
      return
    for key, value in items:
      word = re.sub(r"\W", "_", key)
      visit(value, f"{path}_{word}" if path else word)

  visit(structure, "")
  return found


def _structured(spec: Any, leaves: list[Any]) -> Any:
  """Puts leaves in the order of `named` back into the structure of `spec`."""
  left = iter(leaves)

  def build(node: Any) -> Any:
    if node is None:
      return None
    if isinstance(node, Mapping):
      return {key: build(value) for key, value in node.items()}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
      return type(node)(*map(build, node))
    if isinstance(node, list | tuple):
      return type(node)(map(build, node))
    return next(left)

  return build(spec)
