"""Builds the strategy of several workers that train in step."""

from __future__ import annotations

import tensorflow as tf

from official_trainer.distribute.cluster import CHIEF, WORKER, Cluster
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.rendezvous import answering, await_processes, say_once
from official_trainer.errors import ConfigError

_IMPLEMENTATIONS = {
  None: tf.distribute.experimental.CommunicationImplementation.AUTO,
  "ring": tf.distribute.experimental.CommunicationImplementation.RING,
  "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


def build_multi_worker_strategy(config: RuntimeConfig, cluster: Cluster) -> tf.distribute.MultiWorkerMirroredStrategy:
  """Builds the strategy, once all workers are there. Call before TensorFlow has made a tensor.

  Args:
    config: the runtime config.
    cluster: the processes of the run.

  Raises:
    ConfigError: if the devices are not there, a worker does not answer, or an option is unknown.
  """
  if config.all_reduce_alg not in _IMPLEMENTATIONS:
    raise ConfigError.of(
      "runtime.all_reduce_alg", f"must be 'nccl' or 'ring' or unset for workers, got {config.all_reduce_alg!r}."
    )
  # Only what is there physically: to ask for logical devices would start TensorFlow, too early for collectives.
  found = len(tf.config.list_physical_devices("GPU"))
  if config.num_gpus > found:
    raise ConfigError.of("runtime.num_gpus", f"asked for {config.num_gpus} GPUs on {cluster.name}, found {found}.")
  address = cluster.address
  if address is None:
    raise ConfigError.of("the cluster", f"{cluster.name} has no address.")
  with answering(address):
    await_processes(
      cluster.others(CHIEF, WORKER), timeout_secs=config.cluster_timeout_secs, waiting=say_once(cluster.name)
    )
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({job: list(addresses) for job, addresses in cluster.trainers.items()}),
    task_type=cluster.task_type,
    task_id=cluster.task_index,
    num_accelerators={"GPU": config.num_gpus or found},
    rpc_layer="grpc",
  )
  options = tf.distribute.experimental.CommunicationOptions(implementation=_IMPLEMENTATIONS[config.all_reduce_alg])
  return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
