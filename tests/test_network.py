import os
import socket
import subprocess
import sys

import pytest

from tests import network
from tests.processes import programs


def own_address():
  """Returns an address of this machine that is not loopback, through which nothing leaves it."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("198.51.100.1", 9))  # Sends nothing: it chooses an interface.
    except OSError:
      pytest.skip("this machine has no address but loopback")
    address = probe.getsockname()[0]
  if address.startswith("127."):
    pytest.skip("this machine has no address but loopback")
  return address


CONNECT = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
client = socket.create_connection(server.getsockname()[:2])
print("connected", flush=True)
sys.stdin.read()
"""
START_ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"


def connected(address, *before):
  """Starts a process that connects to itself through an address."""
  command = [sys.executable, "-c", *before, CONNECT, address]
  process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == "connected\n"
  return process


def watched(process):
  """Looks at a process until two more samples are there, and then ends it."""
  with process, network.loopback_only(lambda: [process.pid]) as watch:
    programs.wait_until(lambda: watch.samples >= 2)
    process.stdin.close()
    process.wait()
  return watch


def test_connections_within_the_machine_are_seen_and_allowed():
  watch = watched(connected("127.0.0.1"))
  assert any("-> 127.0.0.1 port" in text for text in watch.local)


def test_a_connection_to_another_address_fails_the_test():
  address = own_address()
  with pytest.raises(AssertionError, match=rf"connections that leave the machine:\nprocess \d+ -> {address} port"):
    watched(connected(address))


def test_a_connection_of_a_process_that_a_process_has_started_fails_the_test_too():
  address = own_address()
  with pytest.raises(AssertionError, match=rf"process \d+ -> {address} port"):
    watched(connected(address, START_ANOTHER))


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


def proc_with(tmp_path, table, *rows):
  """Writes a /proc in which process 7 holds socket 100."""
  (tmp_path / "net").mkdir()
  (tmp_path / "7/fd").mkdir(parents=True)
  os.symlink("socket:[100]", tmp_path / "7/fd/3")
  (tmp_path / "7/stat").write_text("7 (a) b) S 1 7 7 0")
  lines = [f"   0: {local} {remote} {state} 0:0 00:0 0 0 0 {inode} 1" for local, remote, state, inode in rows]
  (tmp_path / "net" / table).write_text("\n".join([HEAD, *lines]) + "\n")
  return tmp_path


@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are those of a little-endian machine")
@pytest.mark.parametrize(
  ("table", "row", "local", "foreign"),
  [
    ("tcp", ("0100007F:8000", "010200C0:0050", "02", 100), [], ["192.0.2.1 port 80"]),  # Nobody has answered.
    ("tcp", ("0100007F:8000", "0100007F:1F90", "01", 100), ["127.0.0.1 port 8080"], []),
    ("tcp", ("00000000:8000", "00000000:0000", "0A", 100), [], []),  # Listens on all interfaces.
    ("tcp", ("0100007F:8000", "010200C0:0050", "01", 101), [], []),  # Of another process.
    ("tcp6", ("0" * 32 + ":1", "0000000000000000FFFF0000010200C0:0050", "01", 100), [], ["::ffff:192.0.2.1 port 80",
                                                                                       "::ffff:c000:201 port 80"]),
    ("tcp6", ("0" * 32 + ":1", "0000000000000000FFFF00000100007F:0050", "01", 100), ["7f"], []),
    ("tcp6", ("0" * 32 + ":1", "00000000000000000000000001000000:0050", "01", 100), ["::1 port 80"], []),
    ("tcp6", ("0" * 32 + ":1", "B80D0120000000000000000001000000:0050", "02", 100), [], ["2001:db8::1 port 80"]),
  ],
)  # fmt: skip
def test_every_kind_of_row_is_read(tmp_path, table, row, local, foreign):
  watch = network.Watch(lambda: [7], proc_with(tmp_path, table, row))
  watch.sample()
  for found, expected in ((watch.local, local), (watch.foreign, foreign)):
    assert len(found) == min(len(expected), 1)
    assert not expected or any(text in item for item in found for text in expected)


def test_an_error_while_looking_is_not_lost():
  def broken():
    raise RuntimeError("no processes here")

  with pytest.raises(RuntimeError, match="no processes here"), network.loopback_only(broken):
    pass
