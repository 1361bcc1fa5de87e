"""Builds the `tf.distribute` strategy that the runtime config asks for."""

from __future__ import annotations

import itertools
import os

import tensorflow as tf
import tf_keras

from official_trainer.distribute.cluster import EVALUATOR, Cluster
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.parameter_servers import build_parameter_server_strategy
from official_trainer.distribute.tpu import build_tpu_strategy
from official_trainer.distribute.workers import build_multi_worker_strategy
from official_trainer.errors import ConfigError

_POLICIES = {None: "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


class _MirroredStrategy(tf.distribute.MirroredStrategy):
  """A MirroredStrategy whose collectives are its own, also where one process builds several strategies.

  TensorFlow numbers the collectives of every strategy from the same start, so that those of a second strategy are taken
  for members of the first one's, and fail ("Shape mismatch in the collective instance") or wait for ever.
  """

  _bases = itertools.count(start=1)
  _KEYS_EACH = 10_000

  def __init__(self, *args, **kwargs):
    # The attribute from which TensorFlow's own test strategies number theirs.
    self._collective_key_base = next(self._bases) * self._KEYS_EACH
    super().__init__(*args, **kwargs)


def configure_devices(config: RuntimeConfig) -> None:
  """Applies process-wide settings: eager functions for debugging, threads, logical CPU devices. Call before TensorFlow
  has made a tensor.

  Raises:
    ConfigError: if TensorFlow was already initialised with another number of devices.
  """
  tf.config.run_functions_eagerly(config.run_eagerly)
  os.environ.update(_variables_of(config))
  if config.deterministic_ops:
    tf.config.experimental.enable_op_determinism()
  if config.num_virtual_devices is None:
    return
  cpu = tf.config.list_physical_devices("CPU")[0]
  try:
    tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * config.num_virtual_devices
    )
  except RuntimeError:
    found = len(tf.config.list_logical_devices("CPU"))
    if found < config.num_virtual_devices:
      raise ConfigError.of(
        "runtime.num_virtual_devices",
        f"asked for {config.num_virtual_devices} logical CPU devices, but TensorFlow already runs with {found};"
        " configure it before the first tensor is made, or start a new process.",
      ) from None


def _variables_of(config: RuntimeConfig) -> dict[str, str]:
  """Returns the environment variables by which TensorFlow is told what the config says of GPUs."""
  told = {
    "TF_GPU_THREAD_MODE": config.gpu_thread_mode,
    "TF_GPU_THREAD_COUNT": config.per_gpu_thread_count or None,
    "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": 1 if config.batchnorm_spatial_persistent else None,
  }
  return {name: str(value) for name, value in told.items() if value is not None}


def set_precision(config: RuntimeConfig) -> None:
  """Sets tf-keras's global dtype policy from `runtime.mixed_precision_dtype`, before a model is built."""
  dtype = config.mixed_precision_dtype
  tf_keras.mixed_precision.set_global_policy(_POLICIES.get(dtype, dtype))


def build_strategy(config: RuntimeConfig, cluster: Cluster | None = None) -> tf.distribute.Strategy:
  """Builds the strategy, for a process that trains or evaluates.

  `mirrored` over a single device becomes OneDeviceStrategy, which computes the same without the bookkeeping; so does
  `multi_worker_mirrored` with one worker become `mirrored`.

  Args:
    config: the runtime config.
    cluster: the processes of the run; None for this one alone.

  Raises:
    ConfigError: if the devices or processes asked for are not there.
  """
  kind = config.distribution_strategy
  if kind == "off":
    return tf.distribute.get_strategy()
  if kind == "tpu":
    return build_tpu_strategy(config)
  if cluster is not None and cluster.task_type != EVALUATOR:
    if kind == "multi_worker_mirrored":
      return build_multi_worker_strategy(config, cluster)
    if kind == "parameter_server":
      return build_parameter_server_strategy(config, cluster)
  if kind == "parameter_server" and cluster is None:
    raise ConfigError.of(
      "runtime.distribution_strategy", "'parameter_server' needs a cluster: describe it in TF_CONFIG."
    )
  devices = _devices(config)
  if kind == "one_device":
    devices = devices[:1]
  if len(devices) == 1:
    return tf.distribute.OneDeviceStrategy(devices[0])
  return _MirroredStrategy(devices, cross_device_ops=_cross_device_ops(config))


def _devices(config: RuntimeConfig) -> list[str]:
  if config.num_virtual_devices is not None:
    return [f"CPU:{index}" for index in range(config.num_virtual_devices)]
  found = len(tf.config.list_logical_devices("GPU"))
  if config.num_gpus > found:
    raise ConfigError.of("runtime.num_gpus", f"asked for {config.num_gpus} GPUs, found {found}.")
  return [f"GPU:{index}" for index in range(config.num_gpus or found)] or ["CPU:0"]


def _cross_device_ops(config: RuntimeConfig) -> tf.distribute.CrossDeviceOps | None:
  if config.all_reduce_alg is None:
    return None
  if config.all_reduce_alg == "nccl":
    return tf.distribute.NcclAllReduce(num_packs=config.num_packs)
  if config.all_reduce_alg == "hierarchical_copy":
    return tf.distribute.HierarchicalCopyAllReduce(num_packs=config.num_packs)
  raise ConfigError.of(
    "runtime.all_reduce_alg", f"must be 'nccl' or 'hierarchical_copy' or unset, got {config.all_reduce_alg!r}."
  )
