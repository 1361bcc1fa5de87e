"""The strategy of a TPU, in the order that TPUStrategy documents: find it, connect, initialise."""

from __future__ import annotations

import contextlib
import socket
import textwrap
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError

ANSWER_SECS = 10.0
"""How long an address may take to answer before it counts as not there."""

# How a client of gRPC begins: the preface of HTTP/2, and settings that change nothing.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS = b"\x04"

_REASON_CHARACTERS = 160
_ADVICE = (
  "Give its name, its address (grpc://HOST:8470), or 'local' on a TPU VM, by --tpu or runtime.tpu.\n"
  "--mode=check_tpu looks without a TPU for what one would refuse."
)


def build_tpu_strategy(config: RuntimeConfig, *, answer_secs: float = ANSWER_SECS) -> tf.distribute.TPUStrategy:
  """Connects to the TPU that `runtime.tpu` names and returns a strategy over all of its cores.

  Call before anything is made with TensorFlow: initialising a TPU clears its memory. Models are not split over cores,
  and each core is a replica.

  Args:
    config: the runtime config. Without `tpu`, TensorFlow looks in the variables that a cloud sets, such as TPU_NAME.
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
    first = textwrap.shorten(reason, _REASON_CHARACTERS, placeholder=" ...")
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
  """Greets each address once, because TensorFlow would wait for ever for one that does not answer.

  Raises:
    ConfigError: if an address is not there, or no gRPC server, which begins with its settings (RFC 9113, section 3.4).
  """
  for address in addresses:
    host, _, port = address.rpartition(":")
    try:
      with socket.create_connection((host.strip("[]"), int(port)), timeout=secs) as connection:
        connection.sendall(_GREETING)
        header = connection.recv(_FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except OSError as error:
      reason = f"nothing within {secs:g} seconds" if isinstance(error, TimeoutError) else error.strerror or str(error)
      raise _unanswered(address, reason) from error
    if header[3:4] != _SETTINGS:
      raise _unanswered(address, "what answers is no gRPC server")


def _unanswered(address: str, reason: str) -> ConfigError:
  return ConfigError.of("runtime.tpu", f"no TPU answers at {address}: {reason}.\n{_ADVICE}")
