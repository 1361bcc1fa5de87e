"""Things that users register under a name, so that a config can ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from official_trainer.config.nearest import meant
from official_trainer.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D", bound=Any)


class Named(Generic[T]):
  """One kind of such things."""

  def __init__(self, kind: str, built_in: dict[str, T] | None = None):
    """Begins with those that are always there.

    Args:
      kind: what they are, for people, e.g. "schedule".
      built_in: name -> thing.
    """
    self._kind = kind
    self._things: dict[str, T] = dict(built_in or {})

  def register(self, name: str) -> Callable[[D], D]:
    """Returns a decorator that registers what it is put on. A module that is loaded again registers anew.

    Raises:
      ConfigError: if another thing has the name already.
    """

    def decorate(thing: D) -> D:
      known = self._things.get(name)
      if known is not None and _place(known) != _place(thing):
        message = f"is registered twice: by {_place(known)} and by {_place(thing)}. Give one of them another name."
        raise ConfigError.of(f"{self._kind} '{name}'", message)
      self._things[name] = thing
      return thing

    return decorate

  def find(self, name: str, key: str) -> T:
    """Returns what has a name.

    Args:
      name: the name.
      key: the dotted key that says it, for errors.

    Raises:
      ConfigError: if there is none.
    """
    if problem := self.problem(name):
      raise ConfigError.of(key, problem)
    return self._things[name]

  def problem(self, name: str) -> str | None:
    """Says what is wrong with a name, or returns None."""
    if name in self._things:
      return None
    known = ", ".join(sorted(self._things)) or "none"
    return (
      f"there is no {self._kind} '{name}'.{meant(name, self._things)} Known: {known}.\n"
      "One of your own is known once the module that registers it is imported: by --experiment_module, or the task's."
    )

  def __contains__(self, name: object) -> bool:
    return name in self._things

  def __iter__(self) -> Iterator[str]:
    return iter(self._things)


def _place(thing: Any) -> str:
  return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"
