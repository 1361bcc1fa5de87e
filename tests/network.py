"""Watches what processes connect to, by sampling the kernel's tables while they run.

A server of TensorFlow listens on all interfaces, which is no connection. A connection attempt counts as soon as it is
made, whether or not anybody answers. One that begins and ends between two samples is not seen.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECS = 0.02
_TABLES = ("tcp", "tcp6")
_LISTEN = "0A"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Connection(NamedTuple):
  """The remote end of a socket, and the socket's inode."""

  address: Address
  port: int
  inode: int

  @property
  def is_local(self) -> bool:
    mapped = self.address.ipv4_mapped if isinstance(self.address, ipaddress.IPv6Address) else None
    return (mapped or self.address).is_loopback


class Watch:
  """What was seen so far.

  Attributes:
    local: connections within this machine, as texts with the process and the remote end.
    foreign: all others.
    samples: how often was looked.
  """

  def __init__(self, pids: Callable[[], Iterable[int]], proc: Path = Path("/proc")):
    self._pids = pids
    self._proc = proc
    self.local: set[str] = set()
    self.foreign: set[str] = set()
    self.samples = 0

  def sample(self) -> None:
    """Looks once at the connections of the processes, and of all that they have started."""
    table: dict[int, Connection] | None = None
    for pid in members(self._pids(), self._proc):
      inodes = socket_inodes(pid, self._proc)
      if not inodes:
        continue
      # The sockets are listed before the table is read: one that is opened in between is in the next sample.
      table = {item.inode: item for name in _TABLES for item in connections(self._proc, name)}
      for inode in inodes & table.keys():
        found = table[inode]
        text = f"process {pid} -> {found.address} port {found.port}"
        (self.local if found.is_local else self.foreign).add(text)
    self.samples += 1


@contextlib.contextmanager
def loopback_only(pids: Callable[[], Iterable[int]]) -> Iterator[Watch]:
  """Fails after the body if any of the processes connected to anything but this machine.

      with LocalCluster(workers=2, ...) as cluster, network.loopback_only(cluster.pids) as watch:
        cluster.wait(timeout=120)
      assert watch.local  # They talked to each other, and it was seen.

  Args:
    pids: returns the processes to look at. What they have started is looked at as well.
  """
  watch, done = Watch(pids), threading.Event()
  failures: list[BaseException] = []

  def look() -> None:
    try:
      while True:
        watch.sample()
        if done.wait(SAMPLE_SECS):
          return
    except BaseException as error:  # Handed over to the test.
      failures.append(error)

  thread = threading.Thread(target=look, name="network watch", daemon=True)
  thread.start()
  try:
    yield watch
  finally:
    done.set()
    thread.join()
  if failures:
    raise failures[0]
  assert watch.samples, "the connections were never looked at"
  assert not watch.foreign, "connections that leave the machine:\n" + "\n".join(sorted(watch.foreign))


def members(pids: Iterable[int], proc: Path = Path("/proc")) -> set[int]:
  """Returns the processes, those of their groups, and all that descend from them."""
  found = set(pids)
  parents: dict[int, tuple[int, int]] = {}
  for folder in proc.iterdir():
    if folder.name.isdigit():
      with contextlib.suppress(OSError):
        fields = (folder / "stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
        parents[int(folder.name)] = (int(fields[1]), int(fields[2]))
  while more := {pid for pid, above in parents.items() if pid not in found and found.intersection(above)}:
    found |= more
  return found


def socket_inodes(pid: int, proc: Path = Path("/proc")) -> set[int]:
  """Returns the inodes of the sockets that a process holds; none if it has ended."""
  found = set()
  with contextlib.suppress(OSError):
    for file in os.scandir(proc / str(pid) / "fd"):
      with contextlib.suppress(OSError):
        target = os.readlink(file.path)
        if target.startswith("socket:["):
          found.add(int(target[8:-1]))
  return found


def connections(proc: Path, name: str) -> Iterator[Connection]:
  """Yields what a table of the kernel has: sockets with a remote end, also one that has not answered."""
  path = proc / "net" / name
  if not path.exists():
    return
  for line in path.read_text("ascii").splitlines()[1:]:
    fields = line.split()
    remote, state, inode = fields[2], fields[3], int(fields[9])
    written, _, port = remote.partition(":")
    if state != _LISTEN and int(port, 16):
      yield Connection(_address(written), int(port, 16), inode)


def _address(written: str) -> Address:
  # Words of 32 bits, each in the order of bytes of this machine.
  words = [bytes.fromhex(written[start : start + 8])[::-1] for start in range(0, len(written), 8)]
  return ipaddress.ip_address(b"".join(words))
