"""Comparing replicas, and processes, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from official_trainer.distribute.peers import Peers
from official_trainer.errors import ReplicasDiffer, first_of

_MOST_NAMES = 5


class Fingerprint:
  """Checksums of the raw bits of variables of which every replica has the same value.

  A checkpoint holds the first replica's value. Where another one's has come to differ (a faulty device, a step that is
  not the same on all), the run goes on as something that its checkpoint does not describe.
  """

  def __init__(self, strategy: tf.distribute.Strategy, peers: Peers, variables: Sequence[tf.Variable]):
    """Stores its arguments; traces on first use.

    Args:
      strategy: the strategy the variables were made under.
      peers: the processes that train together.
      variables: those that each replica keeps for itself, and strings, are left out.
    """
    self._strategy = strategy
    self._peers = peers
    self._variables = [
      v for v in variables if v.dtype != tf.string and v.synchronization != tf.VariableSynchronization.ON_READ
    ]
    self._checksums = tf.function(self._on_replicas)

  def require_equal(self, step: int) -> None:
    """Compares the values of all replicas of all processes, and their steps.

    Args:
      step: completed updates of this process.

    Raises:
      ReplicasDiffer: with the variables, and the replicas that are not like the others.
    """
    if self._strategy.num_replicas_in_sync == 1:
      return
    local = np.stack([np.asarray(row) for row in self._strategy.experimental_local_results(self._checksums())])
    found = self._peers.gathered([step, *local.reshape(-1).tolist()])
    if len(set(found[:, 0])) > 1:
      where = ", ".join(f"{name}: {row[0]}" for name, row in zip(self._peers.names, found, strict=True))
      raise ReplicasDiffer(f"the processes are not at the same step ({where}). Do all of them read the same model_dir?")
    rows = found[:, 1:].reshape(-1, len(self._variables))
    if lines := self._differences(rows):
      raise ReplicasDiffer("\n".join([f"at step {step} the replicas hold different values:", *lines, _ADVICE]))

  def _differences(self, rows: np.ndarray) -> list[str]:
    lines = []
    for variable, column in zip(self._variables, rows.T, strict=True):
      values, counts = np.unique(column, return_counts=True)
      if len(values) > 1:
        odd = np.flatnonzero(column != values[np.argmax(counts)])
        num_local = len(column) // self._peers.num
        who = [
          f"replica {i} ({self._peers.names[i // num_local]})" if self._peers.num > 1 else f"replica {i}" for i in odd
        ]
        lines.append(f"  {variable.name.split(':')[0]} {list(variable.shape)}: {first_of(who)}")
    more = len(lines) - _MOST_NAMES
    return [*lines[:_MOST_NAMES], *([f"  and {more} more variables"] if more > 0 else [])]

  def _on_replicas(self) -> tf.Tensor:
    return self._strategy.run(lambda: tf.stack([checksum(v.read_value()) for v in self._variables]))


_ADVICE = (
  "Nothing of it was saved. Started again, the run goes on from the last checkpoint, which was the same on all. If it"
  " happens again on the same machine or device, replace that one."
)


def checksum(value: tf.Tensor) -> tf.Tensor:
  """Returns the sum of a tensor's bits, taken as whole numbers: int64 scalar, the same in any order of addition."""
  if value.dtype.is_bool:
    bits = value
  elif value.dtype.is_complex:
    return checksum(tf.math.real(value)) + 3 * checksum(tf.math.imag(value))
  else:
    kind = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]
    bits = value if value.dtype.is_integer else tf.bitcast(value, kind)
  return tf.reduce_sum(tf.cast(bits, tf.int64))
