"""Waits, for a bounded time, until the other processes of a cluster are there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from absl import logging

from official_trainer.errors import ConfigError

_POLL_SECS = 0.2
_CONNECT_SECS = 5.0


def await_processes(
  addresses: Mapping[str, str],
  *,
  timeout_secs: float,
  waiting: Callable[[str], None] = lambda text: None,
  clock: Callable[[], float] = time.monotonic,
  sleep: Callable[[float], None] = time.sleep,
) -> None:
  """Returns once a connection to each address was possible.

  Args:
    addresses: name of a process, e.g. "worker 1" -> "host:port".
    timeout_secs: how long to wait for all of them together.
    waiting: told whom it waits for, once.
    clock: returns seconds.
    sleep: waits between two looks.

  Raises:
    ConfigError: names who did not answer, and at which address.
  """
  began = clock()
  missing = dict(addresses)
  while True:
    missing = {name: address for name, address in missing.items() if not answers(address)}
    if not missing:
      return
    who = ", ".join(f"{name} ({address})" for name, address in missing.items())
    if clock() - began >= timeout_secs:
      raise no_answer(who, timeout_secs)
    waiting(f"waiting for {who}")
    sleep(_POLL_SECS)


def no_answer(who: str, timeout_secs: float) -> ConfigError:
  """Returns the error that says who did not answer, with the address, and what to look at."""
  return ConfigError.of(
    "runtime.cluster_timeout_secs",
    f"{who}: no answer within {timeout_secs:g} s. Is the process running, is the address right, and does the"
    " network let its port through?",
  )


def say_once(name: str) -> Callable[[str], None]:
  """Returns a `waiting` that logs what it is told, the first time only.

  Args:
    name: of this process.
  """
  said: list[str] = []

  def waiting(text: str) -> None:
    if not said:
      logging.warning("%s: %s", name, text)
    said.append(text)

  return waiting


@contextlib.contextmanager
def answering(address: str) -> Iterator[None]:
  """Answers at this process's own address, for the body: those who wait for it need not wait for TensorFlow too.

  Raises:
    ConfigError: if the port is taken, so that TensorFlow could not have it either.
  """
  host, _, port = address.rpartition(":")
  listener = socket.socket(socket.AF_INET6 if ":" in host.strip("[]") else socket.AF_INET)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind(("", int(port)))  # All interfaces, as TensorFlow's servers do.
  except OSError as error:
    listener.close()
    raise ConfigError.of(
      "the cluster", f"port {port} of this machine is taken ({error.strerror}): {address}."
    ) from error
  listener.listen()
  thread = threading.Thread(target=_accept, args=(listener,), daemon=True, name="rendezvous")
  thread.start()
  try:
    yield
  finally:
    # Closing alone would leave the thread in `accept`, and with it the port taken.
    with contextlib.suppress(OSError):
      listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _accept(listener: socket.socket) -> None:
  while True:
    try:
      connection, _ = listener.accept()
    except OSError:
      return
    connection.close()


def answers(address: str) -> bool:
  """Says whether a connection to "host:port" is possible."""
  host, _, port = address.rpartition(":")
  try:
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECS):
      return True
  except OSError:
    return False
