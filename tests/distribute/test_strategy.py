import os

import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.strategy import build_strategy, configure_devices, set_precision
from official_trainer.errors import ConfigError

pytestmark = pytest.mark.usefixtures("logical_cpus")


def strategy(kind, **settings):
  return build_strategy(RuntimeConfig(distribution_strategy=kind, **settings))


def test_off_is_no_strategy():
  assert strategy("off") is tf.distribute.get_strategy()


@pytest.mark.parametrize("settings", [{}, {"num_virtual_devices": 1}])
def test_mirrored_over_one_device_is_one_device(settings):
  built = strategy("mirrored", **settings)
  assert isinstance(built, tf.distribute.OneDeviceStrategy)
  assert built.num_replicas_in_sync == 1


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_mirrored_has_a_replica_on_each_logical_device(devices):
  built = strategy("mirrored", num_virtual_devices=devices)
  assert isinstance(built, tf.distribute.MirroredStrategy)
  assert built.num_replicas_in_sync == devices


def test_one_device_ignores_the_others():
  assert strategy("one_device", num_virtual_devices=4).num_replicas_in_sync == 1


def test_several_workers_of_which_there_is_one_are_mirrored():
  assert strategy("multi_worker_mirrored", num_virtual_devices=2).num_replicas_in_sync == 2


def test_parameter_servers_need_a_cluster():
  with pytest.raises(ConfigError, match="'parameter_server' needs a cluster: describe it in TF_CONFIG"):
    strategy("parameter_server")


def test_options_of_gpus_are_told_to_tensorflow(monkeypatch):
  monkeypatch.setattr(os, "environ", told := {})
  configure_devices(RuntimeConfig())
  assert told == {}
  configure_devices(
    RuntimeConfig(gpu_thread_mode="gpu_private", per_gpu_thread_count=2, batchnorm_spatial_persistent=True)
  )
  assert told == {
    "TF_GPU_THREAD_MODE": "gpu_private",
    "TF_GPU_THREAD_COUNT": "2",
    "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "1",
  }


def test_gpus_that_are_not_there_are_refused():
  with pytest.raises(ConfigError, match=r"runtime.num_gpus: asked for 9 GPUs, found \d+"):
    strategy("mirrored", num_gpus=9)


def test_an_unknown_all_reduce_is_refused():
  with pytest.raises(ConfigError, match="all_reduce_alg: must be 'nccl' or 'hierarchical_copy' or unset, got 'x'"):
    strategy("mirrored", num_virtual_devices=2, all_reduce_alg="x")


def test_strategies_of_one_process_do_not_disturb_each_other():
  # TensorFlow numbers the collectives of each strategy from the same start.
  def total(built, sizes):
    @tf.function
    def step():
      def replica():
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([size])) for size in sizes]

      return [tf.reduce_sum(built.experimental_local_results(v)[0]) for v in built.run(replica)]

    return [value.numpy() for value in step()]

  for devices, sizes in [(2, [3, 5]), (2, [7, 2]), (4, [3]), (3, [11, 1]), (2, [4])]:
    built = strategy("mirrored", num_virtual_devices=devices)
    assert total(built, sizes) == [devices * size for size in sizes]


def test_more_devices_than_the_running_tensorflow_has_are_refused():
  tf.constant(1.0) + 1.0
  configure_devices(RuntimeConfig(num_virtual_devices=2))
  with pytest.raises(ConfigError, match="asked for 9 logical CPU devices, but TensorFlow already runs with 4"):
    configure_devices(RuntimeConfig(num_virtual_devices=9))


def test_running_eagerly_is_a_switch():
  configure_devices(RuntimeConfig(run_eagerly=True))
  assert tf.config.functions_run_eagerly()
  configure_devices(RuntimeConfig())
  assert not tf.config.functions_run_eagerly()


@pytest.mark.parametrize(
  "dtype, policy",
  [
    (None, "float32"),
    ("float32", "float32"),
    ("bfloat16", "mixed_bfloat16"),
    ("float16", "mixed_float16"),
    ("mixed_float16", "mixed_float16"),
    ("mixed_bfloat16", "mixed_bfloat16"),
  ],
)
def test_precision_is_a_policy_that_keeps_variables_in_float32(dtype, policy):
  try:
    set_precision(RuntimeConfig(mixed_precision_dtype=dtype))
    assert tf_keras.mixed_precision.global_policy().name == policy
    assert tf_keras.mixed_precision.global_policy().variable_dtype == "float32"
  finally:
    set_precision(RuntimeConfig())
