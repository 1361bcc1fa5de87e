"""Exports the weights of a run, and withdraws what does not do the same when it is loaded again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.atomic import write_text
from official_trainer.errors import ConfigError, ExportRefused
from official_trainer.export import manifest
from official_trainer.export.comparison import compare
from official_trainer.export.config import ExportConfig
from official_trainer.export.examples import Examples, inputs_of, num_rows
from official_trainer.export.folder import new_folder
from official_trainer.export.reloading import Reload
from official_trainer.export.saved_model import Signature, traced, write_saved_model
from official_trainer.export.weights_file import write_weights
from official_trainer.state import TrainState
from official_trainer.task import Task

SAVED_MODEL = "saved_model"
WEIGHTS_H5 = "weights_h5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
  """An export that is in its place.

  Attributes:
    folder: where it is.
    step: number of completed updates of the weights.
    weights: "averages" or "raw".
    trials: signature -> {"inputs", "num_examples", "result"}: on what it was tried, and how equal it was.
  """

  folder: str
  step: int
  weights: str
  trials: Mapping[str, Mapping[str, Any]]


class Exporter:
  """Writes exports of one model."""

  def __init__(
    self,
    task: Any,
    state: TrainState,
    settings: ExportConfig,
    *,
    examples: Examples,
    experiment: str | None = None,
    facts: Mapping[str, Any] | None = None,
    reload: Reload,
    held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
  ):
    """Stores its arguments.

    Args:
      task: our Task, or one of Model Garden's, which is served as our default does.
      state: whose model is exported.
      settings: `trainer.export`.
      examples: what exports are tried on.
      experiment: its name, recorded in the manifest.
      facts: recorded in the manifest.
      reload: loads an export again and calls its signatures (`reload_in_fresh_process`).
      held: entered for an export; undoes what calling the model for inference does to its weights.
    """
    self._task: Task = task if isinstance(task, Task) else _Served(task)
    self._state = state
    self._settings = settings
    self._examples = examples
    self._facts = {"experiment": experiment, **(facts or {})}
    self._held = held
    self._reload = reload

  def rehearse(self) -> None:
    """Builds and traces the signatures, so that what is wrong with them is known before anything is trained.

    Raises:
      ConfigError: names those that cannot be traced, or says what is missing to make any.
    """
    if SAVED_MODEL in self._settings.formats:
      traced(self._signatures())

  def export(self, folder: str) -> Exported:
    """Exports the weights of the present state. Call under the strategy's scope.

    Args:
      folder: where the export will be; what is there is replaced once the new one has been loaded and compared.

    Raises:
      ExportRefused: if, loaded again, it does not compute what the model in memory computes. Nothing is left of it.
      ConfigError: if there is something wrong with the signatures.
      NotWritten: if the file system refuses.
    """
    with self._weights_in_place() as weights, self._held(), new_folder(folder, last=manifest.FILE) as temporary:
      signatures: dict[str, Signature] = {}
      trials: dict[str, dict[str, Any]] = {}
      if SAVED_MODEL in self._settings.formats:
        functions = self._signatures()
        signatures = traced(functions)
        write_saved_model(temporary, self._state.model, self._task, functions)
        trials = self._try(temporary, folder, signatures)
      if WEIGHTS_H5 in self._settings.formats:
        write_weights(temporary, self._state.model)
      text = manifest.describe(
        temporary,
        step=self._state.step,
        weights=weights,
        signatures=signatures,
        trials=trials,
        **self._facts,
      )
      write_text(os.path.join(temporary, manifest.FILE), text)
    return Exported(folder=folder, step=self._state.step, weights=weights, trials=trials)

  @contextlib.contextmanager
  def _weights_in_place(self) -> Iterator[str]:
    """Puts the weights in place that are wanted, and says which they are."""
    ema = self._state.ema
    if self._settings.weights == "raw" or not ema.averages:
      with ema.swapped_out():
        yield "raw"
      return
    with ema.swapped_in(self._state.step):
      yield "averages" if ema.is_swapped else "raw"  # Before averaging has begun there are none.

  def _signatures(self) -> Mapping[str, Any]:
    task, model = self._task, self._state.model
    if getattr(model, "save_spec", lambda: True)() is None and self._examples.features is not None:
      task.inference_step(self._examples.features, model)  # A subclassed model knows what it takes once it was called.
    try:
      return task.serving_signatures(model)
    except ValueError as error:
      raise ConfigError.of("task.task_class", f"{type(task).__name__} cannot be served: {error}") from error

  def _try(self, temporary: str, folder: str, signatures: Mapping[str, Signature]) -> dict[str, dict[str, Any]]:
    """Compares what is loaded again with the model in memory."""
    inputs, used = {}, {}
    for name, signature in signatures.items():
      try:
        inputs[name], used[name] = inputs_of(signature.inputs, self._given(name))
      except ValueError as error:
        raise ExportRefused(folder, f"the signature {name!r} cannot be tried: {error}") from error
    try:
      found = self._reload(temporary, inputs)
    except ExportRefused as error:
      raise ExportRefused(folder, error.reason) from error
    trials, problems = {}, []
    for name, signature in signatures.items():
      result, differences = compare(signature(inputs[name]), found[name])
      problems += [f"{name}: {difference}" for difference in differences]
      trials[name] = {"inputs": used[name], "num_examples": num_rows(inputs[name]), "result": result}
    if problems:
      raise ExportRefused(folder, "loaded again, it differs from the model in memory: " + "; ".join(problems))
    return trials

  def _given(self, signature: str) -> Mapping[str, Any] | None:
    features = self._examples.features
    return None if features is None else self._task.serving_examples(signature, features)


class _Served(Task):
  """A task of Model Garden, as far as serving goes."""

  def __init__(self, task: Any):
    super().__init__(None)
    self._served = task

  def inference_step(self, inputs: Any, model: Any) -> Any:
    return self._served.inference_step(inputs, model)
