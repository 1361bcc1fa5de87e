"""Experiments by name: the built-in ones from a table, users' own by decorator.

    @register_experiment("my_pkg/resnet")
    def resnet() -> ExperimentConfig:
      ...

Looking a built-in name up imports one module; listing the names imports none.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from official_trainer.config import nearest
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import ConfigError, Origin

Factory = Callable[[], ExperimentConfig]
F = TypeVar("F", bound=Factory)

_MANIFEST = "official_trainer.experiments.manifest"
_registered: dict[str, Factory] = {}
_for_tpu: set[str] = set()


def register_experiment(name: str, *, for_tpu: bool = False) -> Callable[[F], F]:
  """Registers a function that returns an `ExperimentConfig` under a name.

  The module must be imported to take effect: name it with --experiment_module.

  Args:
    name: how --experiment calls it.
    for_tpu: whether it claims to run on a TPU, so that `--mode=check_tpu` finds nothing in it.

  Raises:
    ConfigError: if another function has the name already.
  """

  def decorate(factory: F) -> F:
    known = _registered.get(name)
    if known is not None and place(known) != place(factory):
      _refuse_duplicate(name, str(place(known)), factory)
    if name in _built_in():
      _refuse_duplicate(name, f"{_built_in()[name]} (built in)", factory)
    _registered[name] = factory
    (_for_tpu.add if for_tpu else _for_tpu.discard)(name)
    return factory

  return decorate


def get_experiment(name: str, modules: Iterable[str] = ()) -> Factory:
  """Returns the function that makes the config of an experiment.

  Args:
    name: a registered name, e.g. "digits/cnn".
    modules: users' modules to import first; also looked for in the working directory.

  Raises:
    ConfigError: if a module or the name does not exist.
  """
  import_modules(modules)
  if name in _registered:
    return _registered[name]
  if name in _built_in():
    return _resolve(name, _built_in()[name])
  near = nearest.nearest(name, list_experiments(), count=3)
  meant = f" Did you mean {' or '.join(repr(word) for word in near)}?" if near else ""
  message = (
    f"there is no experiment '{name}'.{meant}\n"
    "--list_experiments shows all names. One of your own needs --experiment_module=my_pkg.module."
  )
  raise ConfigError.of("--experiment", message)


def list_experiments() -> list[str]:
  """Returns all names known so far, sorted. Imports no experiment."""
  return sorted({*_built_in(), *_registered})


def list_experiments_for_tpu() -> list[str]:
  """Returns the names known so far that claim to run on a TPU, sorted. Imports no experiment."""
  return sorted({*importlib.import_module(_MANIFEST).FOR_TPU, *_for_tpu})


def import_modules(modules: Iterable[str]) -> None:
  """Imports users' modules, so that their experiments are registered.

  The working directory is searched first, as `python -m` does.

  Raises:
    ConfigError: if a module is not found. Errors inside a module are its own and are not changed.
  """
  for module in modules:
    if "/" in module or module.endswith(".py"):
      name = module.removesuffix(".py").strip("./").replace("/", ".")
      message = f"'{module}' is a path; give the name of a module: {name}"
      raise ConfigError.of("--experiment_module", message)
    _search_working_directory()
    try:
      importlib.import_module(module)
    except ModuleNotFoundError as error:
      if error.name is None or not f"{module}.".startswith(f"{error.name}."):
        raise
      message = (
        f"there is no module '{error.name}' (asked for: '{module}').\n"
        f"Looked in {os.getcwd()} and where Python looks. Start where it lies, or install it."
      )
      raise ConfigError.of("--experiment_module", message) from error


def place(factory: Factory) -> Origin:
  """Returns the file and line where a factory is written."""
  code = getattr(factory, "__code__", None)
  if code is None:
    return Origin("experiment", getattr(factory, "__module__", None))
  path = os.path.relpath(code.co_filename)
  shown = code.co_filename if path.startswith("..") else path
  return Origin("experiment", shown, code.co_firstlineno)


def _built_in() -> dict[str, str]:
  manifest = importlib.import_module(_MANIFEST)
  table: dict[str, str] = manifest.EXPERIMENTS
  return table


def _resolve(name: str, target: str) -> Factory:
  module, _, function = target.partition(":")
  factory: Factory = getattr(importlib.import_module(module), function)
  return factory


def _search_working_directory() -> None:
  """Puts the working directory first in the search, also for a console script."""
  if os.getcwd() not in sys.path and "" not in sys.path:
    sys.path.insert(0, os.getcwd())


def _refuse_duplicate(name: str, first: str, factory: Factory) -> None:
  message = (
    f"is registered twice: by {first.removeprefix('experiment, ')} and by "
    f"{str(place(factory)).removeprefix('experiment, ')}.\nGive one of them another name."
  )
  raise ConfigError.of(f"experiment '{name}'", message)
