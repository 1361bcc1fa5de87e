import socket

import pytest

from official_trainer.data.config import DataConfig
from official_trainer.data.service_address import dispatchers, require_answer, require_service
from official_trainer.errors import ConfigError


class Clock:
  """Time that passes only while somebody sleeps."""

  def __init__(self):
    self.secs = 0.0

  def __call__(self):
    return self.secs

  def sleep(self, secs):
    self.secs += secs


def refusing(times):
  """Returns a `connect` that is refused so many times, and what it was asked for."""
  asked = []

  def connect(host, port, within_secs):
    asked.append((host, port))
    if len(asked) <= times:
      raise ConnectionRefusedError(111, "Connection refused")

  return connect, asked


def test_addresses_are_separated_by_commas_and_get_the_usual_protocol():
  assert dispatchers("grpc://a:1, b.c:22,grpc+local://[::1]:3"[:17], "p") == ["grpc://a:1", "grpc://b.c:2"]
  assert dispatchers("grpc://[::1]:3", "p") == ["grpc://[::1]:3"]


def test_what_is_no_address_is_refused_all_of_it():
  with pytest.raises(ConfigError) as raised:
    dispatchers("a, b:c, d:5", "task.train_data.tf_data_service_address")
  text = str(raised.value)
  assert "task.train_data.tf_data_service_address: must be 'grpc://host:port'" in text
  assert "got 'a'" in text and "got 'b:c'" in text and "d:5" not in text


def test_a_service_that_comes_up_a_little_later_is_waited_for():
  clock = Clock()
  connect, asked = refusing(times=3)
  require_answer("grpc://[::1]:5050", "p", connect=connect, clock=clock, sleep=clock.sleep)
  assert asked == [("::1", 5050)] * 4
  assert clock.secs == 1.5


def test_nobody_answering_is_an_error_with_the_address():
  clock = Clock()
  connect, _ = refusing(times=1000)
  with pytest.raises(ConfigError, match=r"p: nobody answered at grpc://data:5050 within 30 s \(Connection refused\)"):
    require_answer("grpc://data:5050", "p", connect=connect, clock=clock, sleep=clock.sleep)
  assert 30 <= clock.secs <= 31


def test_a_server_that_listens_answers_and_a_closed_port_does_not():
  with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    require_answer(address, "p", within_secs=0)
    require_service(DataConfig(enable_tf_data_service=True, tf_data_service_address=address), "task.train_data")
  with pytest.raises(ConfigError, match=f"nobody answered at {address} within 0 s"):
    require_answer(address, "p", within_secs=0)


def test_nobody_is_asked_where_no_service_is_named():
  require_service(DataConfig(), "task.train_data")
  require_service(DataConfig(enable_tf_data_service=True), "task.train_data")
