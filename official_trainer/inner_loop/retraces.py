"""Says when a step is traced, and so compiled, again, and what is different in its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

Signature = Mapping[str, str]
"""Place in the inputs -> type and shape, such as "float32 [8, 32]"."""


class Traces:
  """Counts how often each step was traced. Traces of its first call belong together, and are no surprise.

  Attributes:
    counts: name of the step -> number of traces.
  """

  def __init__(self, *, in_pieces: bool = False, warn: Callable[[str], None] = logging.warning):
    """Begins to count.

    Args:
      in_pieces: whether the step is traced for several functions, as for the workers of parameter servers: then only
        other inputs are worth a warning.
      warn: told of a step that is traced again.
    """
    self.counts: dict[str, int] = {}
    self._in_pieces = in_pieces
    self._warn = warn
    self._last: dict[str, Signature] = {}
    self._settled: set[str] = set()

  @tf.autograph.experimental.do_not_convert
  def note(self, name: str, inputs: Any) -> None:
    """Is called by a step where it has its inputs; in a step that is not traced it does nothing.

    Args:
      name: of the step.
      inputs: nested structure of tensors, per-replica values among them.
    """
    if tf.executing_eagerly():
      return
    self.counts[name] = self.counts.get(name, 0) + 1
    before, now = self._last.get(name), dict(_leaves(inputs, "inputs"))
    self._last[name] = now
    if name in self._settled and before is not None and not (before == now and self._in_pieces):
      self._warn(f"the {name} step is traced again (trace {self.counts[name]}): {_difference(before, now)}")

  def settle(self, name: str) -> None:
    """Says that a call of the step's loop is over: another trace is one too many."""
    self._settled.add(name)


def _difference(before: Signature, now: Signature) -> str:
  places = [place for place in {**before, **now} if before.get(place) != now.get(place)]
  if not places:
    return (
      f"its inputs are the same, {_shown(now)}; something else of the call is not. A Python number where a tensor"
      " should be (the number of steps) is traced anew for each value."
    )
  parts = [f"{place} was {before.get(place, 'not there')}, is {now.get(place, 'not there')}" for place in places]
  return (
    f"{'; '.join(parts)}. Before: {_shown(before)}. Now: {_shown(now)}. Each trace is compiled; give all batches one"
    " shape and type (drop_remainder, padded_batch, tf.ensure_shape)."
  )


def _shown(signature: Signature) -> str:
  return "(" + ", ".join(f"{place}: {kind}" for place, kind in signature.items()) + ")"


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
  if value is None:
    return
  if isinstance(value, tf.distribute.DistributedValues):
    value = value.values[0]
  if isinstance(value, Mapping):
    for key in sorted(value, key=str):
      yield from _leaves(value[key], f"{place}[{key!r}]")
  elif hasattr(value, "_fields"):
    for field in value._fields:
      yield from _leaves(getattr(value, field), f"{place}.{field}")
  elif isinstance(value, list | tuple):
    for index, item in enumerate(value):
      yield from _leaves(item, f"{place}[{index}]")
  elif isinstance(value, tf.Tensor):
    rank = value.shape.rank
    yield place, f"{value.dtype.name} {'of unknown rank' if rank is None else list(value.shape)}"
  else:
    yield place, str(tf.type_spec_from_value(value))
