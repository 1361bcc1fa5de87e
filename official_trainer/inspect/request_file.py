"""A file by which people ask a running program for something: it appears, it is removed, the request is taken up."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class RequestFile:
  """Looks for a file. Processes that train together all call `taken`; the one that owns the folder looks."""

  def __init__(
    self, path: str, *, looks: bool, warn: Callable[[str], None], from_chief: Callable[[int], int] | None = None
  ):
    """Stores its arguments; looks for nothing.

    Args:
      path: the file.
      looks: whether this process looks.
      warn: shows a warning.
      from_chief: returns the chief's number, called by all processes. None for a process alone.
    """
    self._path = path
    self._looks = looks
    self._warn = warn
    self._from_chief = from_chief or int

  def taken(self) -> bool:
    """Returns whether the file was there, and removes it."""
    return bool(self._from_chief(int(self._looks and self._found())))

  def _found(self) -> bool:
    try:
      if not tf.io.gfile.exists(self._path):
        return False
      tf.io.gfile.remove(self._path)
    except tf.errors.OpError as error:
      self._looks = False  # It would be there after every inner loop.
      self._warn(f"{self._path} cannot be removed, and is not looked for any more: {error.message}")
      return False
    return True
