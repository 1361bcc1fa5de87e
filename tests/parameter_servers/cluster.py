"""Workers and parameter servers inside the test's process: what computes is real, what fails is elsewhere."""

import functools
import os
import socket

import tensorflow as tf


@functools.cache
def strategy(workers: int = 2, servers: int = 1) -> tf.distribute.ParameterServerStrategy:
  """Returns the strategy of this process's only cluster: TensorFlow connects to one in its lifetime."""
  os.environ["GRPC_FAIL_FAST"] = "use_caller"
  spec = tf.train.ClusterSpec({"worker": _addresses(workers), "ps": _addresses(servers)})
  config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=workers + 2)
  for job in spec.jobs:
    for index in range(spec.num_tasks(job)):
      tf.distribute.Server(spec, job_name=job, task_index=index, config=config, protocol="grpc")
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
  return tf.distribute.ParameterServerStrategy(resolver)


def _addresses(number: int) -> list[str]:
  listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
  addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
  for listener in listeners:
    listener.close()
  return addresses
