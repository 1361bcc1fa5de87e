"""No TPU is there: what is tested is that this is said, in bounded time. Nothing leaves the machine."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.tpu import _refused, build_tpu_strategy
from official_trainer.errors import ConfigError

VARIABLES = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch):
  """The machine of a test is in no cloud, and the service that knows names does not answer."""
  for name in VARIABLES:
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")


@contextlib.contextmanager
def listening():
  """A socket of this machine that accepts connections, and its address."""
  with socket.create_server(("127.0.0.1", 0)) as server:
    yield server, f"127.0.0.1:{server.getsockname()[1]}"


def refusal(tpu, answer_secs=5.0):
  with pytest.raises(ConfigError) as caught:
    build_tpu_strategy(RuntimeConfig(distribution_strategy="tpu", tpu=tpu), answer_secs=answer_secs)
  (problem,) = caught.value.problems
  assert problem.path == "runtime.tpu"
  assert "--mode=check_tpu looks without a TPU" in problem.message
  return problem.message


@pytest.mark.parametrize("tpu", [None, ""])
def test_no_name_is_refused(tpu):
  assert refusal(tpu).startswith("no TPU was named, and the environment names none: ")


def test_a_machine_without_a_tpu_is_refused():
  assert refusal("local").startswith("no TPU at 'local': NotFoundError: TPUs not found in the cluster")


def test_a_strategy_without_a_tpu_is_refused():
  resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
  with pytest.raises(ConfigError, match="runtime.tpu: no TPU at 'local': IndexError"), _refused("local"):
    tf.distribute.TPUStrategy(resolver)


def test_a_name_that_nobody_knows_is_refused():
  assert refusal("my-tpu").startswith("no TPU at 'my-tpu': URLError")


def test_the_environment_names_a_tpu_as_well(monkeypatch):
  with listening() as (server, address):
    server.close()
    monkeypatch.setenv("TPU_NAME", f"grpc://{address}")
    assert f"no TPU answers at {address}: " in refusal(None)


def test_an_address_where_nobody_listens_is_refused():
  with listening() as (server, address):
    server.close()
    assert refusal(f"grpc://{address}").startswith(f"no TPU answers at {address}: Connection refused.")


def test_an_address_that_accepts_and_says_nothing_is_refused_in_bounded_time():
  with listening() as (_, address):
    message = refusal(f"grpc://{address}", answer_secs=0.2)
  assert message.startswith(f"no TPU answers at {address}: nothing within 0.2 seconds.")


def test_an_address_where_another_protocol_is_spoken_is_refused():
  def answer(server):
    connection, _ = server.accept()
    with connection:
      connection.recv(1024)
      connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

  with listening() as (server, address):
    thread = threading.Thread(target=answer, args=(server,))
    thread.start()
    message = refusal(f"grpc://{address}")
    thread.join()
  assert message.startswith(f"no TPU answers at {address}: what answers is no gRPC server.")


def test_the_limit_of_sockets_is_put_back():
  before = socket.getdefaulttimeout()
  refusal("my-tpu")
  assert socket.getdefaulttimeout() == before


@pytest.mark.slow
def test_a_server_without_a_tpu_is_refused():
  # In a process of its own: TensorFlow stays connected to what it was once connected to.
  code = """
import tensorflow as tf
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.tpu import build_tpu_strategy
from official_trainer.errors import ConfigError
server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, job_name="worker")
try:
  build_tpu_strategy(RuntimeConfig(tpu=server.target))
except ConfigError as error:
  print(error)
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert "runtime.tpu: no TPU at 'grpc://127.0.0.1:" in done.stdout, done.stderr
  assert "NotFoundError: TPUs not found in the cluster" in done.stdout
