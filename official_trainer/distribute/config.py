"""Where and how a run computes. Model Garden's names, defaults and meanings."""

import dataclasses
from typing import Annotated, Literal

import annotated_types as limits

from official_trainer.config.fields import AboveZero, Count, Positive, setting

Strategy = Literal["off", "one_device", "mirrored", "multi_worker_mirrored", "tpu", "parameter_server"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
  """Devices, precision, compilation and the seed of a run. Read once, at the start.

  `seed`, `grace_secs`, `preemption_notice`, `hang_secs`, `deterministic_ops`,
  `num_virtual_devices` and those that begin with `cluster_` are
  additions to Model Garden's.
  """

  distribution_strategy: Strategy = setting(
    "mirrored",
    "How replicas share the work. off: none. one_device: one replica. mirrored: all GPUs of this "
    "machine (or `num_virtual_devices`), and one device where there is only one. multi_worker_mirrored: those of all "
    "workers of a cluster. parameter_server: workers that train asynchronously. tpu: the cores of a TPU.",
  )
  enable_xla: bool = setting(False, "Whether the training step is compiled with XLA (also on a CPU).")
  gpu_thread_mode: Literal["global", "gpu_private", "gpu_shared"] | None = setting(
    None,
    "Which threads start a GPU's kernels: those of all operations, its own, or those of all GPUs. None: TensorFlow's.",
  )
  dataset_num_private_threads: int | None = setting(
    None,
    "Threads of the input pipelines.",
    only_default="Set it in the task's `tf.data.Options` instead.",
  )
  per_gpu_thread_count: Count = setting(0, "Threads for each GPU under 'gpu_private'. 0: TensorFlow's number.")
  tpu: str | None = setting(None, "Name or address of a TPU. Also set by --tpu.")
  num_gpus: Count = setting(0, "GPUs to use on this machine. 0: all there are; a number that is not there is refused.")
  worker_hosts: str | None = setting(
    None, "Addresses of all workers, e.g. 'a:2222,b:2222'; the first one is the chief. None: see `cluster_resolver`."
  )
  task_index: Annotated[int, limits.Ge(-1)] = setting(
    -1, "Which of `worker_hosts` this process is, from 0. -1: none of them."
  )
  cluster_resolver: Literal["tf_config", "slurm", "kubernetes"] | None = setting(
    None,
    "Who describes the cluster. tf_config: the environment variable TF_CONFIG. slurm: SLURM's variables, all tasks are "
    "workers. kubernetes: the pods with `cluster_labels`. None: `worker_hosts`, or else TF_CONFIG where it is set.",
  )
  cluster_labels: str | None = setting(
    None, "Label selector of the pods that are the workers, e.g. 'job-name=digits', for cluster_resolver=kubernetes."
  )
  cluster_port: Annotated[int, limits.Ge(1), limits.Le(65535)] = setting(
    2222, "Port of the workers under slurm (several on one node count upwards from it) and kubernetes."
  )
  cluster_timeout_secs: AboveZero = setting(
    600.0, "How long the processes of a cluster wait at the start for one that does not answer, before they give up."
  )
  all_reduce_alg: str | None = setting(
    None,
    "Algorithm that sums over replicas. mirrored: 'nccl' or 'hierarchical_copy'. multi_worker_mirrored: 'nccl' or "
    "'ring'. None: TensorFlow's choice.",
  )
  num_packs: Count = setting(1, "Pieces into which gradients are packed for an all-reduce.")
  mixed_precision_dtype: Literal["float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"] | None = setting(
    None, "Type of the computation; variables stay float32. None: float32."
  )
  loss_scale: Literal["dynamic"] | AboveZero | None = setting(
    None,
    "Loss scaling under float16: 'dynamic' or a fixed number. None: dynamic under float16, else off.",
  )
  initialize_on_host: bool = setting(
    False,
    "Whether initial weights are drawn on the CPU and then copied, so that devices never hold what drawing them takes. "
    "The values are the same.",
  )
  run_eagerly: bool = setting(False, "Whether steps run line by line, for debugging. Slow.")
  batchnorm_spatial_persistent: bool = setting(
    False, "Whether cuDNN normalises batches in its faster mode, which may overflow in float16."
  )
  deterministic_ops: bool = setting(
    False,
    "Whether operations whose result depends on timing, as some on GPUs do, are replaced by slower ones that give the "
    "same bits every time. Needed for exact resuming on GPUs; how long training waits for data is not measured then.",
  )
  tpu_enable_xla_dynamic_padder: bool | None = setting(
    None, "Whether XLA pads dynamic shapes on a TPU. None: XLA's default."
  )
  num_cores_per_replica: Positive = setting(
    1,
    "TPU cores that share one replica.",
    only_default="Models split over cores are not supported yet.",
  )
  default_shard_dim: Annotated[int, limits.Ge(-1)] = setting(
    -1, "Dimension split over cores.", only_default="Models split over cores are not supported yet."
  )
  use_tpu_mp_strategy: bool = setting(
    False, "TPU model parallelism.", only_default="Models split over cores are not supported yet."
  )
  seed: Count | None = setting(
    None,
    "The one seed of weights, masks, augmentation and data order. None: drawn at the first start, "
    "recorded in the run, and used again on every restart.",
  )
  grace_secs: AboveZero = setting(
    10.0,
    "Seconds a run may live after SIGTERM or Ctrl-C: it saves and ends. Where one step or a compilation outlasts them, "
    "it ends with the checkpoint that was committed last.",
  )
  preemption_notice: Literal["gce"] | None = setting(
    None,
    "Whose notice that the machine will be taken away is asked for every second, besides signals. gce: the metadata "
    "server of Google Compute Engine. The run then stops as on SIGTERM. None: nobody's.",
  )
  hang_secs: AboveZero | None = setting(
    600.0,
    "Seconds without a step after which a run counts as hanging: it writes all stacks and ends with code 43. At least "
    "20 times the longest step so far, and six times as long for all that is not training. None: it may hang for ever.",
  )
  num_virtual_devices: Positive | None = setting(
    None,
    "Splits the CPU into this many logical devices, so that `mirrored` has replicas without GPUs.",
  )
