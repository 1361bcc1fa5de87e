"""Writes a SavedModel that holds what its signatures need, and nothing of Keras or of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.atomic import writing
from official_trainer.errors import ConfigError, Problem
from official_trainer.export.comparison import Tensors

Signatures = Mapping[str, Any]
"""name -> `tf.function` or concrete function."""


class Signature:
  """One function of an export, with the names of its inputs and outputs."""

  def __init__(self, concrete: Any):
    """Takes a concrete function."""
    self.concrete = concrete
    self.inputs: dict[str, tf.TensorSpec] = {
      spec.name: spec for spec in tf.nest.flatten(concrete.structured_input_signature)
    }
    self.outputs: dict[str, tf.TensorSpec] = {
      name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in _by_name(concrete.structured_outputs).items()
    }

  def __call__(self, inputs: Tensors) -> dict[str, np.ndarray]:
    """Computes on the CPU, as the process does that loads the export."""
    with tf.device("/device:CPU:0"):
      outputs = self.concrete(**{name: tf.constant(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in _by_name(outputs).items()}


def traced(signatures: Signatures) -> dict[str, Signature]:
  """Traces the signatures.

  Raises:
    ConfigError: names those that cannot be traced without arguments, or return what cannot be saved.
  """
  found, problems = {}, []
  for name, function in signatures.items():
    try:
      # A concrete function knows no `get_concrete_function` without arguments either.
      concrete = function if hasattr(function, "structured_outputs") else function.get_concrete_function()
      found[name] = Signature(concrete)
    except (TypeError, ValueError, AttributeError) as error:
      problems.append(Problem(f"serving_signatures()[{name!r}]", f"cannot be traced: {error}"))
  if not signatures:
    problems.append(Problem("serving_signatures()", "must return at least one function."))
  if problems:
    raise ConfigError(problems)
  return found


def write_saved_model(folder: str, model: tf.Module, task: Any, signatures: Signatures) -> None:
  """Writes the SavedModel of some signatures.

  Its one attribute that matters to readers is `weights`, the list of the model's variables.

  Args:
    folder: an empty folder.
    model: whose weights, as they are in place now, are written.
    task: whose variables and tables are written where a signature uses them.
    signatures: what a server offers.

  Raises:
    NotWritten: if the file system refuses.
  """
  root = tf.Module()
  root.weights = list(model.variables)
  known = {id(variable) for variable in root.weights}
  # What a function uses must be reachable from the object that is saved.
  captured = {id(tensor) for signature in traced(signatures).values() for tensor in signature.concrete.captured_inputs}
  root.resources = [
    part for part in _resources((model, task)) if id(part) not in known and captured.intersection(_handles(part))
  ]
  with writing(folder):
    tf.saved_model.save(root, folder, signatures=dict(signatures))


def _by_name(outputs: Any) -> dict[str, tf.Tensor]:
  """Names outputs as TensorFlow does in a SavedModel."""
  if isinstance(outputs, Mapping):
    return dict(outputs)
  return {f"output_{place}": tensor for place, tensor in enumerate(tf.nest.flatten(outputs))}


def _handles(part: Any) -> list[int]:
  """Returns the identities of the tensors by which functions hold a variable, also a distributed one, or a table."""
  if not isinstance(part, tf.Variable):
    return [id(part.resource_handle)]
  return [id(value.handle) for value in getattr(part, "values", (part,))]


def _resources(owners: tuple[Any, ...]) -> Iterator[Any]:
  """Yields the variables and tables that belong to some objects."""
  seen: set[int] = set()
  queue = list(owners)
  while queue:
    node = queue.pop(0)
    if id(node) in seen:
      continue
    seen.add(id(node))
    if isinstance(node, tf.Variable) or hasattr(node, "resource_handle"):
      yield node
    elif hasattr(node, "_trackable_children"):
      queue += node._trackable_children().values()  # noqa: SLF001  # TensorFlow has no public walk over trackables.
