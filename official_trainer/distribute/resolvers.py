"""Finds the cluster that the config and the environment describe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_trainer.distribute.cluster import WORKER, Cluster, cluster_of_hosts, cluster_of_tf_config
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError

_RESOLVER = "runtime.cluster_resolver"


def find_cluster(
  config: RuntimeConfig, environment: Mapping[str, str] = os.environ, *, kubernetes_client: Any = None
) -> Cluster | None:
  """Returns the cluster of this run, or None where this process is alone.

  Args:
    config: the runtime config.
    environment: TF_CONFIG, or HOST_IP under Kubernetes. SLURM's variables are read from the process's own.
    kubernetes_client: a `kubernetes.client.CoreV1Api`; None for that of the pod this process runs in.

  Raises:
    ConfigError: if there is no cluster where the config says one is, or its description is wrong.
  """
  if config.worker_hosts:
    return cluster_of_hosts(config.worker_hosts, config.task_index)
  if config.cluster_resolver == "slurm":
    return _of_slurm(config.cluster_port)
  if config.cluster_resolver == "kubernetes":
    return _of_kubernetes(config, environment, kubernetes_client)
  text = environment.get("TF_CONFIG", "")
  if config.cluster_resolver == "tf_config" and not text:
    raise ConfigError.of(_RESOLVER, "is 'tf_config', but the environment variable TF_CONFIG is not set.")
  return cluster_of_tf_config(text)


def _of_slurm(port: int) -> Cluster:
  try:
    # Which GPUs a task may use is SLURM's business (--gpus-per-task), so that none are counted here.
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
      port_base=port, gpus_per_node=_MANY_GPUS, gpus_per_task=1, auto_set_gpu=False
    )
    jobs = resolver.cluster_spec().as_dict()
  except (RuntimeError, ValueError) as error:
    raise ConfigError.of(_RESOLVER, f"is 'slurm', but this is no task of a SLURM step (srun): {error}.") from error
  task_type, task_index = resolver.get_task_info()
  return Cluster(jobs={job: tuple(at) for job, at in jobs.items()}, task_type=task_type, task_index=task_index)


# TensorFlow's resolver lists as many tasks of a node as there are GPUs for.
_MANY_GPUS = 4096


def _of_kubernetes(config: RuntimeConfig, environment: Mapping[str, str], client: Any) -> Cluster:
  try:
    resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
      {WORKER: [config.cluster_labels]}, tf_server_port=config.cluster_port, override_client=client
    )
    hosts = tuple(resolver.cluster_spec().as_dict().get(WORKER, ()))
  except ImportError as error:
    raise ConfigError.of(_RESOLVER, "is 'kubernetes', which needs its client: pip install kubernetes.") from error
  except Exception as error:  # The client has no common class of errors, nor does its configuration.
    raise ConfigError.of(_RESOLVER, f"is 'kubernetes', but the pods cannot be listed: {error}") from error
  own = f"{environment.get('HOST_IP', '')}:{config.cluster_port}"
  if own not in hosts:
    raise ConfigError.of(
      _RESOLVER,
      f"is 'kubernetes', but none of the pods with the labels {config.cluster_labels!r} is at {own}; they are at"
      f" {', '.join(hosts) or '(there are none)'}. Set HOST_IP from status.hostIP in the pod's specification.",
    )
  return Cluster(jobs={WORKER: hosts}, task_type=WORKER, task_index=hosts.index(own))
