"""The strategy of a TPU, in the order that TPUStrategy documents: find it, connect, initialise."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError

LOCAL = "local"
"""What `runtime.tpu` is on a TPU VM, whose chips are in the machine itself."""

ANSWER_SECS = 10.0
"""How long an address may take to answer before it counts as not there."""

_ADVICE = (
  "Give its name, its address (grpc://HOST:8470), or 'local' on a TPU VM, by --tpu or runtime.tpu.\n"
  "--mode=check_tpu looks without a TPU for what one would refuse."
)


def build_tpu_strategy(config: RuntimeConfig, *, answer_secs: float = ANSWER_SECS) -> tf.distribute.TPUStrategy:
  """Connects to the TPU that `runtime.tpu` names and returns a strategy over all of its cores.

  Call before anything is made with TensorFlow: initialising a TPU clears its memory. Models are not split over cores,
  and each core is a replica.

  Args:
    config: the runtime config. Without `tpu`, TensorFlow looks in the variables that a cloud sets (TPU_NAME and others).
    answer_secs: how long each address, also that of a service that is asked for the name, may take to answer.

  Raises:
    ConfigError: if there is no such TPU.
  """
  with _refused(config.tpu):
    with _bounded(answer_secs):
      resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
      cluster = resolver.cluster_spec().as_dict()
    _require_answers([address for addresses in cluster.values() for address in addresses], answer_secs)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver, experimental_spmd_xla_partitioning=False)


@contextlib.contextmanager
def _refused(name: str | None) -> Iterator[None]:
  """Turns every way in which TensorFlow says that there is no TPU into one error.

  They are: ValueError without a name, OSError and RuntimeError for a name that nobody knows, errors of the address and
  of the machine behind it, NotFoundError when that has no TPU, and IndexError when TPUStrategy meets none.
  """
  try:
    yield
  except ConfigError:
    raise
  except (ValueError, OSError, RuntimeError, IndexError, tf.errors.OpError) as error:
    reason = getattr(error, "message", None) or str(error)
    first = next(iter(reason.splitlines()), "").strip() or type(error).__name__
    what = f"no TPU at {name!r}" if name else "no TPU was named, and the environment names none"
    raise ConfigError.of("runtime.tpu", f"{what}: {type(error).__name__}: {first}\n{_ADVICE}") from error


@contextlib.contextmanager
def _bounded(secs: float) -> Iterator[None]:
  """Bounds the waits of what is asked over HTTP, for which TensorFlow sets no limit."""
  before = socket.getdefaulttimeout()
  socket.setdefaulttimeout(secs)
  try:
    yield
  finally:
    socket.setdefaulttimeout(before)


def _require_answers(addresses: list[str], secs: float) -> None:
  """Connects to each address once, because TensorFlow would go on trying."""
  for address in addresses:
    host, _, port = address.rpartition(":")
    try:
      socket.create_connection((host.strip("[]"), int(port)), timeout=secs).close()
    except OSError as error:
      reason = "no answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0)
      raise ConfigError.of(
        "runtime.tpu", f"{address} does not answer within {secs:g} seconds ({reason}).\n{_ADVICE}"
      ) from error
