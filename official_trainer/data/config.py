"""What a task is told about one of its data sets. Model Garden's names, defaults and meanings."""

import dataclasses
from typing import Any, Literal

from official_trainer.config.fields import Count, Positive, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
  """Settings of one input: which data, which batches, in which order.

  Users subclass it with fields of their own. The names are Model Garden's; `shuffle`, `resume`, `skip_steps`,
  `cache_in_memory_mb` and `num_examples` are additions. A task that makes its own `tf.data.Dataset` decides itself
  which of the fields it reads.
  """

  input_path: str | tuple[str, ...] | dict[str, Any] = setting(
    "",
    "Files to read: a path or pattern, several separated by commas, a list, or names with one of "
    "these each. Empty when `tfds_name` is used.",
  )
  tfds_name: str | dict[str, Any] = setting(
    "", "Name of a prepared TensorFlow Datasets set. Empty when `input_path` is used."
  )
  tfds_split: str = setting("", "Split of the TFDS set, e.g. 'train' or 'train[:90%]'.")
  global_batch_size: Count = setting(
    0, "Examples a step, over all replicas together. Must be at least 1 for data that are read."
  )
  is_training: bool | None = setting(
    None, "True for training data: repeated for ever and shuffled. None: the trainer sets it."
  )
  drop_remainder: bool = setting(
    True,
    "Whether a `tf.data` pipeline leaves out a last partial batch. Indexed training batches are "
    "always full, and evaluation pads and masks the last one whatever this says.",
  )
  shuffle_buffer_size: Count = setting(
    100, "Examples in the shuffle buffer of a `tf.data` pipeline. Indexed inputs need none."
  )
  cache: bool = setting(False, "Whether a `tf.data` pipeline keeps parsed examples in memory.")
  cycle_length: Positive | None = setting(None, "Files read at the same time. None: chosen by tf.data.")
  block_length: Positive = setting(1, "Consecutive elements from one file before the next file's turn.")
  ram_budget: Positive | None = setting(None, "Memory budget of tf.data in GB. None: half of the host's.")
  deterministic: bool | None = setting(
    None, "Whether `tf.data` must keep its order. None: tf.data's default, which keeps it."
  )
  sharding: bool = setting(
    True,
    "Whether each input worker reads its own part of the files. With a tf.data service: whether its workers share "
    "the elements of a `tf.data` pipeline (dynamic sharding), so that each is given once; else each gives them all.",
  )
  enable_tf_data_service: bool = setting(False, "Whether a tf.data service does the preprocessing.")
  tf_data_service_address: str | None = setting(
    None,
    "Address of the service's dispatcher, e.g. 'grpc://data:5050'; several separated by commas if each has one worker. "
    "Also set by --tf_data_service. None: the run starts a service of its own on this machine.",
  )
  tf_data_service_job_name: str | None = setting(
    None, "Name of the service's job; data sets of one name share it. None: a job of its own."
  )
  num_tf_data_service_workers: Positive = setting(
    1, "Processes that make the data where the run starts a tf.data service of its own."
  )
  tfds_data_dir: str = setting("", "Folder of prepared TFDS sets. Empty: TFDS's default folder.")
  tfds_as_supervised: bool = setting(
    False, "Whether TFDS gives (input, label) pairs instead of a dictionary of all features."
  )
  tfds_skip_decoding_feature: str = setting(
    "", "Names of TFDS features, separated by commas, that are left encoded (e.g. images)."
  )
  enable_shared_tf_data_service_between_parallel_trainers: bool = setting(
    False, "Whether several trainers that run at the same time share one tf.data service."
  )
  apply_tf_data_service_before_batching: bool = setting(
    False, "Whether the service works on examples instead of batches."
  )
  trainer_id: str | None = setting(None, "Which of several trainers that share a service this one is.")
  seed: int | None = setting(None, "Seed of this input's order. None: the seed of the run.")
  prefetch_buffer_size: int | None = setting(None, "Batches prepared in advance. None: tuned by tf.data.")
  autotune_algorithm: str | None = setting(None, "Name of a `tf.data` autotune algorithm, or None.")
  shuffle: bool | None = setting(
    None, "Whether training draws a new order in each epoch. None: yes. Evaluation keeps the order."
  )
  resume: Literal["auto", "index", "skip", "none"] = setting(
    "auto",
    "How training finds its place in the data after a restart. index: the batch is computed from "
    "the step (needs random access). skip: a `tf.data` pipeline is run forward to its place. none: "
    "the data start over. auto: index where the task offers random access, else skip.",
  )
  skip_steps: tuple[tuple[Count, Count], ...] = setting(
    (),
    "Training batches to leave out, as [first, end] pairs: [[100, 120]] steps over the batches that the updates from "
    "step 100 to step 120 would use, and later batches move up.",
  )
  cache_in_memory_mb: Count = setting(
    512, "A decoded TFDS split of at most this many MB is loaded once and kept in memory. 0: never."
  )
  num_examples: Positive | None = setting(
    None,
    "Examples in one epoch, for durations in epochs. None: those of the task's source, or what its `tf.data` pipeline "
    "says. Needed where neither knows.",
  )
