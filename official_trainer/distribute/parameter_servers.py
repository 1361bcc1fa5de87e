"""The strategy of workers that train asynchronously, with the variables on parameter servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_trainer.distribute.cluster import CHIEF, PS, WORKER, Cluster
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.rendezvous import await_processes, say_once


def build_parameter_server_strategy(config: RuntimeConfig, cluster: Cluster) -> tf.distribute.ParameterServerStrategy:
  """Builds the strategy in the coordinator, once all workers and servers are there.

  Args:
    config: the runtime config.
    cluster: the processes of the run, of which this is the chief.

  Raises:
    ConfigError: if one does not answer.
  """
  await_processes(cluster.others(WORKER, PS), timeout_secs=config.cluster_timeout_secs, waiting=say_once(cluster.name))
  return tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(
      cluster_spec(cluster), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )
  )


def cluster_spec(cluster: Cluster) -> tf.train.ClusterSpec:
  """Returns the processes that compute, all of which must be told of the same ones."""
  return tf.train.ClusterSpec({job: list(cluster.jobs[job]) for job in (CHIEF, WORKER, PS)})


def is_asynchronous(strategy: tf.distribute.Strategy) -> bool:
  """Says whether the workers of a strategy each train for themselves."""
  return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def run_here(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function whose steps run in this process, without TensorFlow's warning that workers might do it."""

  @functools.wraps(function)
  def here(*args: Any, **kwargs: Any) -> Any:
    extended = tf.distribute.get_strategy().extended
    before = extended._allow_run_without_coordinator  # noqa: SLF001  # What tf-keras sets for the same purpose.
    extended._allow_run_without_coordinator = True  # noqa: SLF001
    try:
      return function(*args, **kwargs)
    finally:
      extended._allow_run_without_coordinator = before  # noqa: SLF001

  return here
