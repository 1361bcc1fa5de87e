"""Free ports of this machine, none of which is handed out twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

_FIRST = 12_000
_EPHEMERAL_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_DEFAULT_EPHEMERAL = 32_768


class ReservedPorts:
  """Ports that nobody listened on when they were taken, held against every other `ReservedPorts` until `close`.

  A port that is bound, closed and given away may be taken by somebody else before its user binds it. Here the ports
  lie below those that the system gives to outgoing connections, and a lock on a file for each of them keeps programs
  that look for ports at the same time apart. The locks end with the process, however it ends.
  """

  def __init__(self, count: int, candidates: Sequence[int] | None = None):
    """Takes `count` ports.

    Args:
      count: how many.
      candidates: what to choose from; None for the usual range, in a random order.

    Raises:
      OSError: if there are not that many free ones.
    """
    self._locks: list[IO[bytes]] = []
    self.ports: list[int] = []
    for port in _in_random_order() if candidates is None else candidates:
      if len(self.ports) == count:
        break
      if (lock := _locked(port)) is None:
        continue
      if _is_free(port):
        self._locks.append(lock)
        self.ports.append(port)
      else:
        lock.close()
    if len(self.ports) < count:
      self.close()
      raise OSError(f"No {count} free ports were found on this machine.")

  def close(self) -> None:
    """Gives the ports back."""
    for lock in self._locks:
      lock.close()
    self._locks = []


def _in_random_order() -> Iterator[int]:
  end = _DEFAULT_EPHEMERAL
  with contextlib.suppress(OSError, ValueError), open(_EPHEMERAL_RANGE, encoding="ascii") as file:
    end = int(file.read().split()[0])
  if end <= _FIRST + 1000:
    end = _DEFAULT_EPHEMERAL
  yield from random.sample(range(_FIRST, end), end - _FIRST)


def _locked(port: int) -> IO[bytes] | None:
  """Returns the open file that is locked for a port, or None if another holder has it."""
  folder = os.path.join(tempfile.gettempdir(), f"official-trainer-ports-{os.getuid()}")
  os.makedirs(folder, mode=0o700, exist_ok=True)
  file = open(os.path.join(folder, str(port)), "ab")
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.close()
    return None
  return file


def _is_free(port: int) -> bool:
  # Servers bind all interfaces: a port that is taken on any of them is not free.
  with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
    try:
      probe.bind(("", port))
    except OSError:
      return False
  return True
