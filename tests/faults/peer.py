"""Adapter: jobs on the trainer of tf-models-official, started as its own train.py starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import orbit
import tensorflow as tf
import tf_keras
from official.common import distribute_utils
from official.core import (
  base_task,
  config_definitions,
  exp_factory,
  input_reader,
  task_factory,
  train_lib,
  train_utils,
)
from official.modeling import performance

from tests.faults import tiny_task
from tests.faults.stack import Crash, Job, Outcome, Stack, nested

EXPERIMENT = "faults/tiny"


@dataclasses.dataclass
class PeerTaskConfig(config_definitions.TaskConfig):
  """Settings of the tiny regression: none of its own."""


@task_factory.register_task_cls(PeerTaskConfig)
class PeerTask(tiny_task.TinyRegression, base_task.Task):
  """The tiny regression as a Model Garden task: a tf.data pipeline, a scalar loss for each replica."""

  loss_is_mean = True

  def build_inputs(self, params, input_context=None):
    training = bool(params.is_training)
    if training and self.job.file:
      # Its reader repeats where `is_training` says so, and draws from a buffer, here of one example.
      changes = {"input_path": self.job.file, "is_training": self.job.repeat, "shuffle_buffer_size": 1}
      read = params.replace(**changes, drop_remainder=self.job.repeat)
      reader = input_reader.InputReader(read, dataset_fn=tf.data.TFRecordDataset, parser_fn=tiny_task.parsed)
      return reader.read(input_context)
    batch_size = params.global_batch_size
    if input_context is not None:
      batch_size = input_context.get_per_replica_batch_size(batch_size)
    dataset = tf.data.Dataset.from_tensor_slices(tiny_task.examples(self.job, training))
    if training:
      if self.job.shuffle:
        dataset = dataset.shuffle(self.job.num_examples, seed=params.seed)
      dataset = dataset.repeat() if self.job.repeat else dataset
    dataset = dataset.batch(batch_size)
    if training and self.job.on_read is not None:
      dataset = dataset.map(lambda features, labels: (self.decoded(features), labels))
    return dataset.prefetch(1)


@exp_factory.register_config_factory(EXPERIMENT)
def experiment() -> config_definitions.ExperimentConfig:
  return config_definitions.ExperimentConfig(task=PeerTaskConfig())


def _params(job: Job) -> config_definitions.ExperimentConfig:
  params = experiment()
  settings = {
    **job.settings(),
    "runtime.distribution_strategy": job.strategy,
    "task.train_data.is_training": True,
    "task.train_data.seed": job.seed,
    "task.validation_data.is_training": False,
  }
  params.override(nested(settings))
  params.validate()
  params.lock()
  return params


class Peer(Stack):
  """tf-models-official."""

  name = "peer"

  def execute(self, folder: str, job: Job, outcome: Outcome) -> None:
    params = _params(job)
    if "train" in job.mode:
      train_utils.serialize_config(params, folder)
    if job.checkpoint is not None and job.mode == "eval":
      folder = os.path.dirname(job.checkpoint) if not os.path.isdir(job.checkpoint) else job.checkpoint
    tf_keras.utils.set_random_seed(job.seed)
    try:
      if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
      strategy = _strategy(job)
      with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=folder)
        task.join(job, outcome)
      clock = SimpleNamespace(time=job.clock) if job.clock is not None else orbit.controller.time
      with mock.patch.object(orbit.controller, "time", clock):
        run = _Run(strategy, task, job.mode, params, folder, outcome=outcome, enable_async_checkpointing=True)
        try:
          run.run()
        finally:
          run.checkpoint_manager.sync()  # As its process would, at its exit.
    finally:
      tf_keras.mixed_precision.set_global_policy("float32")
      if (trainer := outcome.trainer) is not None:
        outcome.step = int(trainer.global_step.numpy())
        outcome.updates = int(trainer.optimizer.iterations.numpy())
        outcome.weights = [v.numpy() for v in trainer.model.variables]

  def evaluate_untrained(self, folder: str, job: Job) -> Outcome:
    outcome = Outcome()
    strategy = _strategy(Job())
    with strategy.scope():
      task = task_factory.get_task(_params(job).task, logging_dir=folder)
      task.join(job, outcome)
      trainer = train_utils.create_trainer(_params(job), task, train=True, evaluate=True)
      trainer.evaluate(tf.constant(-1))
    return outcome

  def save_now(self, trainer: Any, prefix: str) -> None:
    trainer.checkpoint.write(prefix)

  def without_commit(self, folder: str, step: int) -> None:
    prefix = os.path.join(folder, f"ckpt-{step}")
    state = tf.train.get_checkpoint_state(folder)
    left = [path for path in state.all_model_checkpoint_paths if os.path.basename(path) != os.path.basename(prefix)]
    tf.compat.v1.train.update_checkpoint_state(folder, left[-1], left)

  @contextlib.contextmanager
  def failing_best_export(self) -> Iterator[None]:
    def failing(exporter, checkpoint):
      raise Crash("while the best weights were written")

    with mock.patch.object(train_utils.BestCheckpointExporter, "_get_checkpoint_manager", failing):
      yield

  def as_command(self, run: Callable[[], None]) -> None:
    run()  # Its train.py catches only what a TPU that was taken away raises.

  def parse(self, *, files: Sequence[str] = (), overrides: str = "", experiment: str | None = "default") -> Any:
    name = EXPERIMENT if experiment == "default" else experiment
    options = train_utils.ParseConfigOptions(experiment=name, config_file=list(files), params_override=overrides)
    return train_utils.parse_configuration(options, print_return=False)

  def undocumented_settings(self) -> list[str]:
    config = experiment()
    groups = {"trainer": config.trainer, "runtime": config.runtime, "task.train_data": config.task.train_data}
    return [
      f"{group}.{field.name}"
      for group, value in groups.items()
      for field in dataclasses.fields(value)
      if f"{field.name}:" not in (type(value).__doc__ or "")
    ]


class _Run(train_lib.OrbitExperimentRunner):
  """The peer's runner, which tells its outcome of the trainer and of the logs."""

  def __init__(self, *args: Any, outcome: Outcome, **kwargs: Any):
    self._outcome = outcome
    super().__init__(*args, eval_actions=[self._keep], **kwargs)

  def _build_trainer(self, *args: Any, **kwargs: Any) -> Any:
    self._outcome.trainer = super()._build_trainer(*args, **kwargs)
    return self._outcome.trainer

  def _keep(self, logs: Any) -> None:
    self._outcome.logs = {
      key: float(value) for key, value in logs.items() if getattr(value, "shape", ()) == () or key == "score"
    }


def _strategy(job: Job) -> tf.distribute.Strategy:
  if job.in_cluster:
    return distribute_utils.get_distribution_strategy(job.strategy)
  if job.num_replicas == 1:
    return tf.distribute.OneDeviceStrategy("/cpu:0")
  # TensorFlow's default for CPUs, collectives, fixes the number of replicas once a process.
  return tf.distribute.MirroredStrategy(
    [f"/cpu:{index}" for index in range(job.num_replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
  )
