"""Ways to run an experiment that are not this library's loop, by name.

    @register_runner("sweep")
    def sweep(loaded, *, mode, model_dir):
      ...                                       # loaded.config is the config as it was written

`--runner=sweep`, or `trainer.runner: sweep`, calls it in place of everything else. "module:function" works without
being registered.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from official_trainer import registry
from official_trainer.config import nearest
from official_trainer.errors import ConfigError

Run = Callable[..., Any]
"""(loaded, *, mode, model_dir) -> what `Runner.run` returns; `model_dir` is "" without any."""

R = TypeVar("R", bound=Run)

_registered: dict[str, Run] = {}


def register_runner(name: str) -> Callable[[R], R]:
  """Registers a function under a name, in a module that `--experiment_module` names.

  Raises:
    ConfigError: if another function has the name already.
  """

  def decorate(run: R) -> R:
    known = _registered.get(name)
    if known is not None and registry.place(known) != registry.place(run):
      message = f"is registered twice: by {registry.place(known).file} and by {registry.place(run).file}."
      raise ConfigError.of(f"runner '{name}'", message)
    _registered[name] = run
    return run

  return decorate


def get_runner(name: str) -> Run:
  """Returns a function by its registered name, or by "module:function".

  Raises:
    ConfigError: if there is none.
  """
  if name in _registered:
    return _registered[name]
  module, colon, function = name.partition(":")
  if colon:
    registry.import_modules([module])
    found = getattr(importlib.import_module(module), function, None)
    if callable(found):
      run: Run = found
      return run
    raise ConfigError.of("trainer.runner", f"{module} has no function '{function}'.")
  known = f" Known: {', '.join(sorted(_registered))}." if _registered else ""
  message = (
    f"there is no runner '{name}'.{nearest.meant(name, _registered)}{known}\nWrite 'module:function', or register it."
  )
  raise ConfigError.of("trainer.runner", message)
