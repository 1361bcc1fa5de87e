"""Where the initial values of variables are computed, and what memory that has taken."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def computed_on_host(wanted: bool) -> Iterator[None]:
  """Makes the initial values of variables made in the body on the CPU, and then copies them to where the variables are.

  The devices then hold the variables alone, without what was needed to draw them, which would leave holes in their
  memory. The values are the same.

  Args:
    wanted: whether to do so at all.
  """
  if not wanted:
    yield
    return

  def creator(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    initial = kwargs.get("initial_value")
    # A value that comes from a checkpoint is an object that TensorFlow recognises.
    if callable(initial) and not hasattr(initial, "checkpoint_position"):
      kwargs["initial_value"] = _on_host(initial)
    return next_creator(**kwargs)

  with tf.variable_creator_scope(creator):
    yield


def peak_memory() -> dict[str, int]:
  """Returns device -> the largest number of bytes that were in use at a time so far; "host" is this process."""
  unit = 1 if sys.platform == "darwin" else 1024
  peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  for device in tf.config.list_logical_devices("GPU"):
    name = device.name.removeprefix("/device:")
    peaks[name] = tf.config.experimental.get_memory_info(name)["peak"]
  return peaks


def _on_host(initial: Callable[..., Any]) -> Callable[..., Any]:
  def value(*args: Any, **kwargs: Any) -> Any:
    with tf.device("CPU:0"):
      return initial(*args, **kwargs)

  return value
