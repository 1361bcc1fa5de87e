"""Which line of a stack is the user's: not TensorFlow's, and not this library's unless nobody else is there."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import linecache
import os
import sysconfig
from collections.abc import Iterable
from typing import Any

_FRAMEWORKS = ("tensorflow", "tf_keras", "keras", "orbit")
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXPERIMENTS = os.path.join(_OURS, "experiments") + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED = "__autograph_generated_file"


@dataclasses.dataclass(frozen=True, order=True)
class Place:
  """A line of source.

  Attributes:
    file: its path.
    line: its number, from 1.
    function: the function it is in.
    is_users: whether it is neither of an installed package nor of this library.
  """

  file: str
  line: int
  function: str = ""
  is_users: bool = True

  @property
  def text(self) -> str:
    """The line itself, without indentation; empty where it cannot be read."""
    return linecache.getline(self.file, self.line).strip()

  def __str__(self) -> str:
    where = f"{self.file}:{self.line}"
    return f"{where}, in {self.function}" if self.function else where


def user_place(frames: Iterable[Any] | None) -> Place | None:
  """Returns the innermost line of the user's in a stack.

  Who called this library is not looked at. Where no line is the user's, it is the innermost one of an installed package
  other than TensorFlow and Keras, or else of this library.

  Args:
    frames: the outermost first; each with `filename`, `lineno` and `name`. None is an empty stack.

  Returns:
    None where the frameworks are alone.
  """
  stack = [frame for frame in frames or () if not _is_framework(frame.filename)]
  ours = [index for index, frame in enumerate(stack) if _is_ours(frame.filename)]
  inside = stack[ours[0] :] if ours else stack
  users = [frame for frame in inside if not _is_ours(frame.filename) and not _is_installed(frame.filename)]
  others = [frame for frame in inside if not _is_ours(frame.filename)]
  for kind in (users, others, inside):
    if kind:
      frame = kind[-1]
      return Place(frame.filename, frame.lineno or 0, frame.name, is_users=kind is users)
  return None


def place_of(function: Any) -> Place | None:
  """Returns where a function or method is defined; None for what has no source."""
  code = getattr(function, "__code__", None)
  if code is None:
    return None
  is_users = not (_is_ours(code.co_filename) or _is_installed(code.co_filename) or _is_framework(code.co_filename))
  return Place(code.co_filename, code.co_firstlineno, function.__name__, is_users)


def _is_ours(filename: str) -> bool:
  # Installed, the built-in experiments lie inside the package.
  return filename.startswith(_OURS) and not filename.startswith(_EXPERIMENTS)


def _is_installed(filename: str) -> bool:
  return not filename.startswith(_EXPERIMENTS) and any(folder in filename for folder in _INSTALLED)


def _is_framework(filename: str) -> bool:
  """Whether a file is of the frameworks or of Python itself, which are nobody's mistake."""
  if _GENERATED in filename or filename.startswith("<frozen"):
    return True
  if any(folder in filename for folder in _INSTALLED):  # The standard library's folder may hold that of packages.
    return filename.startswith(_package_folders())
  return filename.startswith((*_package_folders(), _standard_library()))


@functools.cache
def _standard_library() -> str:
  return sysconfig.get_paths()["stdlib"] + os.sep


@functools.cache
def _package_folders() -> tuple[str, ...]:
  """Returns where the frameworks are installed. Imports none of them."""
  specs = [importlib.util.find_spec(name) for name in _FRAMEWORKS]
  return tuple(
    os.path.abspath(folder) + os.sep
    for spec in specs
    if spec is not None
    for folder in spec.submodule_search_locations or ()
  )
