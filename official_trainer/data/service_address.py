"""Addresses of a tf.data service, and whether anybody answers there. Needs no TensorFlow."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

from official_trainer.data.config import DataConfig
from official_trainer.errors import ConfigError, Problem

ANSWER_SECS = 30.0
_PAUSE_SECS = 0.5
_ADDRESS = re.compile(r"(?:(?P<protocol>\w+)://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d+)")

Connect = Callable[[str, int, float], None]


def dispatchers(written: str, path: str) -> list[str]:
  """Returns the addresses of the dispatchers that are written, separated by commas, each with its protocol.

  Raises:
    ConfigError: if one is no address.
  """
  found, problems = [], []
  for text in filter(None, (part.strip() for part in written.split(","))):
    match = _ADDRESS.fullmatch(text)
    if match is None:
      problems.append(Problem(path, f"must be 'grpc://host:port', several separated by commas, got {text!r}."))
    else:
      found.append(text if match["protocol"] else f"grpc://{text}")
  if problems:
    raise ConfigError(problems)
  return found


def require_answer(
  address: str,
  path: str,
  *,
  within_secs: float = ANSWER_SECS,
  connect: Connect | None = None,
  clock: Callable[[], float] = time.monotonic,
  sleep: Callable[[float], None] = time.sleep,
) -> None:
  """Waits until somebody accepts a connection: a service that starts with the run may come a little later.

  Args:
    address: of one dispatcher, from `dispatchers`.
    path: of the setting, for the error.
    within_secs: how long.
    connect: opens and closes a connection to (host, port) within so many seconds; raises OSError if it cannot.
    clock: seconds.
    sleep: waits for seconds.

  Raises:
    ConfigError: with the address, if nobody does.
  """
  match = _ADDRESS.fullmatch(address)
  if match is None:
    raise ConfigError.of(path, f"must be 'grpc://host:port', got {address!r}.")
  end = clock() + within_secs
  while True:
    try:
      left = max(_PAUSE_SECS, end - clock())
      (connect or _connect)(match["host"].strip("[]"), int(match["port"]), left)
      return
    except OSError as error:
      if clock() >= end:
        message = f"nobody answered at {address} within {within_secs:g} s ({error.strerror or error}).\n"
        raise ConfigError.of(path, message + "Start the tf.data service first, or leave the address out.") from None
    sleep(_PAUSE_SECS)


def require_service(params: DataConfig, path: str) -> None:
  """Raises ConfigError if the settings name a service and nobody answers at its address. Builds nothing."""
  if params.enable_tf_data_service and params.tf_data_service_address is not None:
    for address in dispatchers(params.tf_data_service_address, f"{path}.tf_data_service_address"):
      require_answer(address, f"{path}.tf_data_service_address")


def _connect(host: str, port: int, within_secs: float) -> None:
  socket.create_connection((host, port), timeout=within_secs).close()
