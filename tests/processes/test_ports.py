import socket
import subprocess
import sys

import pytest

from official_trainer.processes.ports import ReservedPorts


def test_ports_are_distinct_and_can_be_bound():
  reserved = ReservedPorts(20)
  assert len(set(reserved.ports)) == 20
  for port in reserved.ports:
    with socket.socket() as server:
      server.bind(("127.0.0.1", port))
  reserved.close()


def test_a_port_is_not_handed_out_twice_until_it_is_given_back():
  first = ReservedPorts(3)
  with pytest.raises(OSError, match="No 1 free ports"):
    ReservedPorts(1, candidates=first.ports)
  first.close()
  second = ReservedPorts(3, candidates=first.ports)
  assert second.ports == first.ports
  second.close()


def test_a_port_on_which_somebody_listens_is_not_handed_out():
  with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    with pytest.raises(OSError, match="No 1 free ports"):
      ReservedPorts(1, candidates=[server.getsockname()[1]])


def test_another_process_does_not_get_a_reserved_port_either():
  reserved = ReservedPorts(1)
  code = f"from official_trainer.processes.ports import ReservedPorts; ReservedPorts(1, {reserved.ports})"
  refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  reserved.close()
  assert "No 1 free ports" in refused.stderr
  subprocess.run([sys.executable, "-c", code], check=True)
