"""One unambiguous name for each variable of a model, for rules and tables that speak of variables."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
import tf_keras


def variable_paths(model: tf_keras.Model) -> list[tuple[str, tf.Variable]]:
  """Names every variable of a built model by its place in it, such as "backbone/block_1/conv/kernel".

  A path is the names of the layers around the variable, outermost first and without the model's own, and then the
  last part of the variable's name without its ":0". `variable.name` does not tell apart the variables of equal layers
  in two nested models; a path does:

  - Of several layers with one name inside the same layer, the second is called "name#2", the third "name#3"; likewise
    variables with one name of the same layer. The numbers follow the order in which Keras tracks the layers.
  - A layer that is reached in several ways (shared by two others) has the first path only: each variable occurs once.
  - Variables of a `tf.Module` that is no layer are named under the module's name.
  - Variables that the model reports from elsewhere (an overridden `variables`) come last, by their full names.

  Paths do not depend on what is trainable at the moment, on strategies or on precision. They do depend on the names
  that Keras gives to layers without one ("dense_3"): these count the layers made in the process, the same in each
  start of a program. Rules should name layers that were named.

  Args:
    model: a built model.

  Returns:
    (path, variable) for exactly the variables in `model.variables`, depth first in the order of the layers; a layer's
    own variables come before those inside it, those it made as trainable first.
  """
  wanted = {id(variable): variable for variable in model.variables}
  found: list[tuple[str, tf.Variable]] = []
  scopes: set[str] = set()
  for scope, variables in _layers(model, "", scopes, set()):
    taken: set[str] = set()
    for variable in variables:
      if wanted.pop(id(variable), None) is not None:
        found.append((scope + _unused(_last_name(variable), taken), variable))
  taken = {path for path, _ in found}
  found += [(_unused(_full_name(variable), taken), variable) for variable in wanted.values()]
  return found


def _layers(module: tf.Module, scope: str, scopes: set[str], seen: set[int]) -> Iterator[tuple[str, list[tf.Variable]]]:
  """Yields the scope ("" or ending in "/") and the own variables of a layer and of all inside it, each layer once."""
  seen.add(id(module))
  if not isinstance(module, tf_keras.layers.Layer):
    yield scope, list(module.variables)
    return
  yield scope, [*module._trainable_weights, *module._non_trainable_weights]  # noqa: SLF001  # What it holds itself.
  for inner in module._flatten_modules(recursive=False, include_self=False):  # noqa: SLF001  # Keras has no other way.
    if id(inner) not in seen:
      yield from _layers(inner, f"{_unused(scope + inner.name, scopes)}/", scopes, seen)


def _unused(name: str, taken: set[str]) -> str:
  """Returns `name`, or where that is taken `name#2`, `name#3`, ...; takes it."""
  chosen, number = name, 1
  while chosen in taken:
    number += 1
    chosen = f"{name}#{number}"
  taken.add(chosen)
  return chosen


def _full_name(variable: tf.Variable) -> str:
  return variable.name.partition(":")[0]


def _last_name(variable: tf.Variable) -> str:
  return _full_name(variable).rpartition("/")[2]
