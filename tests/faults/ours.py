"""Adapter: jobs on official_trainer, through its Runner, as its command line starts them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
import tf_keras

from official_trainer import errors, runner
from official_trainer.checkpoint import manifest
from official_trainer.config import hints
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.loading import LoadedExperiment, load
from official_trainer.data.arrays import ArraySource
from official_trainer.registry import register_experiment
from official_trainer.run import session
from official_trainer.run.session import Session
from official_trainer.task import Task
from tests.faults import tiny_task
from tests.faults.stack import Crash, Job, Outcome, Stack, nested

EXPERIMENT = "faults/tiny"
ROOT = Path(__file__).resolve().parents[2]


class OurTask(tiny_task.TinyRegression, Task):
  """The tiny regression as a task of this project: examples with random access where they repeat."""

  def build_source(self, params):
    if params.is_training and (not self.job.repeat or self.job.file):
      return None  # Data that end, or lie in a file: a plain pipeline.
    arrays = tiny_task.examples(self.job, bool(params.is_training))
    if params.tfds_split:  # A named evaluation set: its number of examples.
      arrays = tuple(part[: int(params.tfds_split)] for part in arrays)
    source = ArraySource(arrays)
    return source.map(lambda batch: (self.decoded(batch[0]), batch[1])) if params.is_training else source

  def build_inputs(self, params, input_context=None):
    if self.build_source(params) is not None:
      return super().build_inputs(params, input_context)
    if params.is_training and self.job.file:
      dataset = tf.data.TFRecordDataset(self.job.file).map(tiny_task.parsed)
      return (dataset.repeat() if self.job.repeat else dataset).batch(params.global_batch_size)
    arrays = tiny_task.examples(self.job, bool(params.is_training))
    return tf.data.Dataset.from_tensor_slices(arrays).batch(params.global_batch_size)


@register_experiment(EXPERIMENT)
def experiment() -> ExperimentConfig:
  return ExperimentConfig(task=TaskConfig(task_class="tests.faults.ours:OurTask"))


class _Runner(runner.Runner):
  """A runner whose task is a job's."""

  def __init__(self, loaded: LoadedExperiment, job: Job, outcome: Outcome, **kwargs: Any):
    super().__init__(loaded, **kwargs)
    self._job, self._outcome = job, outcome

  def build_task(self) -> Task:
    task = OurTask(self._loaded.config.task, logging_dir=self._model_dir)
    task.join(self._job, self._outcome)
    return task

  def build_trainer(self, task):
    trainer = super().build_trainer(task)
    self._outcome.trainer = trainer
    return trainer


def _runner(folder: str, job: Job, outcome: Outcome) -> _Runner:
  settings = {
    **job.settings(),
    "runtime.seed": job.seed,
    "runtime.distribution_strategy": job.strategy,
    "runtime.num_virtual_devices": None if job.num_replicas == 1 else job.num_replicas,
    "task.train_data.is_training": True,
    "task.train_data.shuffle": job.shuffle,
    "task.validation_data.is_training": False,
  }
  loaded = load(experiment=EXPERIMENT, params_override=json.dumps(nested(settings)), mode=job.mode)
  return _Runner(
    loaded,
    job,
    outcome,
    mode=job.mode,
    model_dir=folder,
    checkpoint=job.checkpoint,
    allow_config_change=job.allowed_changes,
  )


class Ours(Stack):
  """official_trainer."""

  name = "ours"

  def execute(self, folder: str, job: Job, outcome: Outcome) -> None:
    made = _runner(folder, job, outcome)
    clocked = functools.partial(Session, clock=job.clock) if job.clock is not None else Session
    try:
      with mock.patch.object(runner, "Session", clocked), mock.patch.object(session, "plot_history"):
        outcome.logs = made.run().logs
    finally:
      tf_keras.mixed_precision.set_global_policy("float32")
      if (trainer := outcome.trainer) is not None:
        outcome.step = trainer.state.step
        outcome.updates = -1 if trainer.optimizer is None else int(trainer.optimizer.iterations.numpy())
        outcome.weights = [v.numpy() for v in trainer.model.variables]

  def evaluate_untrained(self, folder: str, job: Job) -> Outcome:
    outcome = Outcome()
    made = _runner(folder, job, outcome)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
      trainer = made.build_trainer(made.build_task())
      trainer.evaluate(tf.constant(-1))
    return outcome

  def save_now(self, trainer: Any, prefix: str) -> None:
    with trainer.state.packed() as checkpoint:
      checkpoint.write(prefix)

  def without_commit(self, folder: str, step: int) -> None:
    os.remove(manifest.manifest_path(manifest.checkpoint_prefix(folder, step)))

  @contextlib.contextmanager
  def failing_best_export(self) -> Iterator[None]:
    write = tf.train.Checkpoint.write

    def failing(checkpoint, file_prefix, *args, **kwargs):
      if "best_ckpt" in os.fspath(file_prefix):
        raise Crash("while the best weights were written")
      return write(checkpoint, file_prefix, *args, **kwargs)

    with mock.patch.object(tf.train.Checkpoint, "write", failing):
      yield

  def as_command(self, run: Callable[[], None]) -> None:
    try:
      run()
    except BaseException as error:  # noqa: B036 - the process ends here, as in train.py.
      print(f"{type(error).__name__}: {error}", file=sys.stderr)
      sys.exit(errors.exit_code(error))

  def parse(self, *, files: Sequence[str] = (), overrides: str = "", experiment: str | None = "default") -> Any:
    name = EXPERIMENT if experiment == "default" else experiment
    return load(experiment=name, config_files=list(files), params_override=overrides or None).config

  def undocumented_settings(self) -> list[str]:
    page = (ROOT / "docs/reference/config.md").read_text("utf-8")
    config = ExperimentConfig()
    groups = {"trainer": config.trainer, "runtime": config.runtime, "task.train_data": config.task.train_data}
    keys = [f"{group}.{name}" for group, value in groups.items() for name in hints.fields_of(type(value))]
    return [key for key in keys if not re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", page)]
