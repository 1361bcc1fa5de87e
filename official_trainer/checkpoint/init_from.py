"""Initialising a model's variables from a file, variable by variable."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.config import InitConfig
from official_trainer.checkpoint.init_plan import Value, plan
from official_trainer.checkpoint.init_report import InitReport, Spec
from official_trainer.checkpoint.resizing import Resize, resize_function
from official_trainer.checkpoint.weight_source import PathsOf, WeightSource, open_source
from official_trainer.errors import CheckpointMismatch


class Initialisation:
  """An initialisation that was planned, and that changes nothing before `apply`."""

  def __init__(
    self,
    report: InitReport,
    source: WeightSource,
    values: dict[str, Value],
    variables: dict[str, tf.Variable],
    resizes: dict[str, Resize],
  ):
    """Stores the plan; see `planned`."""
    self.report = report
    self._source = source
    self._values = values
    self._variables = variables
    self._resizes = resizes

  def apply(self) -> None:
    """Assigns every value. Call under the strategy's scope.

    Raises:
      CheckpointMismatch: if a value cannot be resized.
    """
    for path, value in self._values.items():
      variable = self._variables[path]
      content = np.asarray(self._source.read(value))
      if path in self._resizes:
        content = self._resized(path, content, tuple(variable.shape))
      variable.assign(content.astype(variable.dtype.as_numpy_dtype))

  def _resized(self, path: str, content: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    report = self.report
    try:
      resized = self._resizes[path](content, shape)
      if tuple(resized.shape) != shape:
        raise ValueError(f"it returned the shape {list(resized.shape)}")
    except ValueError as error:
      raise CheckpointMismatch(
        f"cannot initialise from {report.source}:\n"
        f"  '{report.resized[path]}' cannot bring {report.loaded[path]} {list(content.shape)} to {path} {list(shape)}:"
        f" {error}.\n"
        f"Use another function in `{report.key}.resize`, or add '^{re.escape(path)}$' to `{report.key}.skip`."
      ) from error
    return resized


@contextlib.contextmanager
def planned(
  model: tf_keras.Model,
  named: Sequence[tuple[str, tf.Variable]],
  rules: InitConfig,
  key: str,
  *,
  given: Collection[str] = (),
  paths_of: PathsOf,
) -> Iterator[Initialisation]:
  """Opens the file that `rules` name and finds the value of each variable.

  Args:
    model: the built model.
    named: path and variable of each of its variables.
    rules: what to take, and for which variables.
    key: the setting that the rules are.
    given: paths of variables that another source fills.
    paths_of: names the variables of a model; `optim.variable_paths`.

  Raises:
    ConfigError: if the file cannot be read, or a prefix or a pattern matches nothing.
  """
  below = rules.target_prefix.rstrip("/")
  # A file that is read as a whole for a part of the model is one of such a part.
  part = below if below and not rules.source_prefix else ""
  paths = {id(variable): path.removeprefix(f"{part}/") for path, variable in named if _is_below(path, part)}
  with open_source(
    rules.checkpoint,
    key,
    averages=rules.averages,
    guide=_layer_of(model, set(paths)) if part else model,
    guide_paths=paths,
    paths_of=paths_of,
  ) as source:
    variables = dict(named)
    specs = {path: Spec(tuple(variable.shape), variable.dtype.name) for path, variable in named}
    report, values = plan(source.values, specs, rules, key=key, given=given)
    functions = {hook: resize_function(hook, f"{key}.resize.{i}") for i, (_, hook) in enumerate(rules.resize)}
    resizes = {path: functions[hook] for path, hook in report.resized.items()}
    yield Initialisation(report, source, values, variables, resizes)


def _is_below(path: str, part: str) -> bool:
  return not part or path.startswith(f"{part}/")


def _layer_of(model: tf_keras.Model, ids: set[int]) -> tf_keras.layers.Layer | None:
  """Returns the outermost layer that has exactly these variables, by their ids, or None."""
  for module in model.submodules:
    if isinstance(module, tf_keras.layers.Layer) and {id(variable) for variable in module.variables} == ids:
      return module
  return None
