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
from official_trainer.config.named import Named
from official_trainer.errors import ConfigError

Run = Callable[..., Any]
"""(loaded, *, mode, model_dir) -> what `Runner.run` returns; `model_dir` is "" without any."""

R = TypeVar("R", bound=Run)

_NAMED: Named[Run] = Named("runner")


def register_runner(name: str) -> Callable[[R], R]:
  """Registers a function under a name, in a module that `--experiment_module` names.

  Raises:
    ConfigError: if another function has the name already.
  """

  return _NAMED.register(name)


def get_runner(name: str) -> Run:
  """Returns a function by its registered name, or by "module:function".

  Raises:
    ConfigError: if there is none.
  """
  module, colon, function = name.partition(":")
  if name in _NAMED or not colon:
    return _NAMED.find(name, "trainer.runner")
  registry.import_modules([module])
  found = getattr(importlib.import_module(module), function, None)
  if not callable(found):
    raise ConfigError.of("trainer.runner", f"{module} has no function '{function}'.")
  run: Run = found
  return run
