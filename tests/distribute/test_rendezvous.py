import socket

import pytest

from official_trainer.distribute.rendezvous import answering, await_processes
from official_trainer.errors import ConfigError


class Time:
  """A clock that moves when somebody sleeps."""

  def __init__(self):
    self.now = 0.0
    self.at = {}

  def clock(self):
    return self.now

  def sleep(self, secs):
    self.now += secs
    for when in [when for when in self.at if when <= self.now]:
      self.at.pop(when)()


def free_port():
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


def test_who_answers_is_not_waited_for():
  address = f"127.0.0.1:{free_port()}"
  time = Time()
  with answering(address):
    await_processes({"worker 1": address}, timeout_secs=5.0, clock=time.clock, sleep=time.sleep)
  assert time.now == 0.0


def test_two_that_wait_for_each_other_meet():
  first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
  with answering(first), answering(second):
    await_processes({"worker 1": second}, timeout_secs=5.0)
    await_processes({"worker 0": first}, timeout_secs=5.0)


def test_one_that_comes_later_is_waited_for_and_named_meanwhile():
  address, time, said = f"127.0.0.1:{free_port()}", Time(), []
  later = answering(address)
  time.at[3.0] = later.__enter__
  await_processes({"worker 1": address}, timeout_secs=5.0, waiting=said.append, clock=time.clock, sleep=time.sleep)
  later.__exit__(None, None, None)
  assert time.now >= 3.0
  assert set(said) == {f"waiting for worker 1 ({address})"}


def test_an_address_that_nobody_answers_is_named_when_the_time_is_over():
  addresses = {name: f"127.0.0.1:{free_port()}" for name in ("worker 1", "worker 2")}
  time = Time()
  with answering(addresses["worker 1"]), pytest.raises(ConfigError) as raised:
    await_processes(addresses, timeout_secs=5.0, clock=time.clock, sleep=time.sleep)
  assert f"worker 2 ({addresses['worker 2']}): no answer within 5 s" in str(raised.value)
  assert "worker 1" not in str(raised.value)
  assert 5.0 <= time.now < 6.0


def test_a_port_that_is_taken_is_named():
  with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    port = other.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} of this machine is taken"), answering(f"127.0.0.1:{port}"):
      pass


def test_the_port_is_free_again_afterwards():
  address = f"127.0.0.1:{free_port()}"
  for _ in range(2):
    with answering(address):
      await_processes({"worker 1": address}, timeout_secs=1.0)
