"""The training half of a trainer: inner loops of updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orbit
import tensorflow as tf
import tf_keras

from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.anchor import Anchor
from official_trainer.data.padding import Batch
from official_trainer.data.skipped import SkippedBatches
from official_trainer.distribute.compilation import compiled_step
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.replicas import average_statistics
from official_trainer.inner_loop.batch_run import InOne, InParts, ReplicaStep
from official_trainer.inner_loop.execution import Execution
from official_trainer.inner_loop.feed import Feed
from official_trainer.inner_loop.retraces import Traces
from official_trainer.inner_loop.step_loss import LoopLoss, add_loss, add_terms, build_term_means, mask_argument
from official_trainer.metrics.compiled import joint_metrics
from official_trainer.optim.guard import NoGuard, UpdateGuard
from official_trainer.optim.pruning import NoPruning, Pruning
from official_trainer.optim.scheduled import Schedules
from official_trainer.optim.updates import NoUpdates, Updates
from official_trainer.random_state import StepKeyedRandom, look_for_unsaved_randomness
from official_trainer.state import TrainState

TRAINING = "training"


class Training(orbit.StandardTrainer):
  """What `Trainer` inherits for training; it has the parts that are named here, and knows its strategy and task."""

  _state: TrainState
  _execution: Execution
  _options: TrainerConfig
  _runtime: RuntimeConfig
  _guard: NoGuard | UpdateGuard
  _batch_run: InOne | InParts
  _pruning: NoPruning | Pruning
  _random: StepKeyedRandom
  _updates: NoUpdates | Updates
  _schedules: Schedules
  _skipped: SkippedBatches
  _train_loss: tf_keras.metrics.Metric
  _traces: Traces

  @property
  def train_loss(self) -> tf_keras.metrics.Metric:
    return self._train_loss

  @property
  def train_metrics(self) -> list[tf_keras.metrics.Metric]:
    return self._train_metrics

  @property
  def report_metrics(self) -> list[tf_keras.metrics.Metric]:
    """What a report on training is made of; reset when one begins."""
    return [*self.train_metrics, self.train_loss, *self._train_terms, *self._guard.metrics, *self._updates.metrics]

  @property
  def train_input(self) -> Feed:
    """Where the training batches come from."""
    return self._train_input

  def keep_window(self, keep: bool) -> None:
    """Says whether the next `train` goes on accumulating the metrics of the one before (a report spans both)."""
    self._keep_window = keep

  def train_loop_begin(self) -> None:
    """Seeks the input to the global step, and resets the metrics at the start of a report. Runs eagerly."""
    step = self._state.step
    # An input that keeps no position goes on wherever the step was put: what it gave it does not give again.
    is_elsewhere = step != self._next_input_step and self._train_input.exact
    if self._train_iter is None or is_elsewhere:
      self._train_dataset, self._train_iter = self._train_input.dataset(step), None
    self._next_input_step = step
    self._schedules.refresh(self._state.host.history.as_of_evaluation, step)
    if not self._keep_window:
      for metric in self.report_metrics:
        metric.reset_state()
    self._loop_loss.begin(is_reset=not self._keep_window)
    self._pruning.begin()

  @property
  def train_dataset(self) -> Any:
    """The present training dataset. One that is set is used in place of the task's, as one given to the constructor."""
    return self._train_dataset

  @train_dataset.setter
  def train_dataset(self, dataset: Any) -> None:
    self._train_input = self._execution.supplied_feed(dataset)
    self._train_dataset, self._train_iter = self._train_input.dataset(self._state.step), None

  @property
  def skipped_batches(self) -> SkippedBatches:
    """Which batches of the training stream are left out: those of the config, and those of `leave_out`."""
    return self._skipped

  def leave_out(self, windows: Iterable[Sequence[int]]) -> None:
    """Leaves out more batches, (first, end) in numbers of the stream, from the next `train` on."""
    self._skipped = self._skipped.joined(windows)
    self._next_input_step = None

  def train(self, num_steps: tf.Tensor) -> Mapping[str, Any] | None:
    """Does `num_steps` updates and returns what `train_loop_end` returns."""
    logs = super().train(num_steps)
    self._next_input_step = self._state.step
    self._traces.settle(TRAINING)
    return logs

  @property
  def train_iterator(self) -> Any:
    """What inner loops read their batches from; None before the first."""
    return self._train_iter

  @property
  def step_variables(self) -> Sequence[tf.Variable]:
    """Variables that a step needs besides those of the state."""
    return self._batch_run.variables

  @property
  def loop_loss(self) -> float | None:
    """The mean training loss of the inner loop that was run last; a report may span several. None without any."""
    return self._loop_loss.mean

  def next_train_inputs(self, iterator: Any) -> Any:
    """Returns the inputs of one update; override to change what the model is fed. Runs on the host, traced.

    For our tasks the iterator yields a `Batch(inputs, mask)` that holds the whole global batch of this host; for tasks
    of Model Garden and supplied datasets, what those datasets yield for each replica.
    """
    return next(iterator)

  def create_train_loop_fn(self) -> Any:
    """Returns the loop over `train_step`, which ends early when a stop is asked for."""
    return self._execution.train_loop(self.train_step, lambda: self._train_input, super().create_train_loop_fn)

  def train_step(self, iterator: Any) -> None:
    """Does one update. Runs in cross-replica context, traced."""
    inputs = self.data_wait.timed(lambda: self.next_train_inputs(iterator))
    self._traces.note(TRAINING, inputs)
    batch = self._train_input.to_replicas(inputs)
    with self._train_input.awaited(inputs):
      self._schedules.assign(self.global_step)
    with self._guard.across_replicas():
      self.update_replicas(batch)
      with self._train_input.awaited(inputs):
        self.global_step.assign_add(1)
        average_statistics(self.strategy, self._statistics)
    with self._train_input.awaited(inputs):
      self._guard.unless_skipped(lambda: self._state.ema.update(self.global_step))

  def update_replicas(self, batch: Batch) -> None:
    """Does one update on every replica, without what the host does around it. Runs in cross-replica context, traced.

    Args:
      batch: one for each replica, or one that each of them takes.
    """
    step = ReplicaStep(self._begin_replica_step, self._do_part, self._end_replica_step)
    self._batch_run.run(batch, step)

  def train_loop_end(self) -> dict[str, Any]:
    """Returns the metrics since the start of the report, and the learning rate of the last update. Runs eagerly."""
    reported = self.report_metrics
    if self._guard.has_skipped and self._train_loss.count.numpy() == 0:
      reported = [*self._guard.metrics]  # Not one update was applied: a loss of 0 would be a lie.
    logs = {metric.name: metric.result() for metric in reported}
    logs.update(self._updates.learning_rates(self.global_step))
    logs.update(self._schedules.values())
    logs.update(self._pruning.sparsities())
    return logs

  def _begin_replica_step(self, batch: Batch) -> list[tf.Tensor]:
    with self._train_input.awaited(batch):
      self._random.assign(self.global_step)
      return self._guard.keep(self._accumulators)

  def _do_part(self, batch: Batch) -> None:
    with self._train_input.awaited(batch):
      logs = self._task_train_step(
        batch.inputs, model=self.model, optimizer=self.optimizer, metrics=self.train_metrics, **mask_argument(batch)
      )
      look_for_unsaved_randomness(refuse=self._options.exact_resume)
      add_loss(self._train_loss, logs, self.task.loss, batch)
      add_terms(self._train_terms, logs, batch)

  def _end_replica_step(self, batch: Batch, kept: list[tf.Tensor]) -> None:
    with self._train_input.awaited(batch):
      self._guard.settle(self._accumulators, kept)

  @property
  def _accumulators(self) -> list[tf.Variable]:
    return [
      variable for metric in [*self.train_metrics, self.train_loss, *self._train_terms] for variable in metric.variables
    ]

  # ---- Construction -------------------------------------------------------------------------------------------------

  def _anchor(self) -> Anchor:
    next_batch = self._skipped.batch_of(self._state.step)
    return self._state.anchor(self.config.task.train_data.global_batch_size, next_batch)

  def _init_training(self, dataset: Any) -> None:
    supplied = None if dataset is None else self._execution.supplied_feed(dataset)
    self._train_input: Feed = supplied or self._execution.train_feed(
      self.task,
      self.config.task.train_data,
      seed=self._seed,
      anchor=self._anchor,
      skipped=lambda: self._skipped,
      distribute=self.distribute_dataset,
      num_parts=self._options.gradient_accumulation_steps,
    )
    if self._options.exact_resume and not self._train_input.exact:
      raise ValueError(f"trainer.exact_resume is set, but {self._train_input.position}.")
    with self._execution.train_sums():
      self._train_terms = build_term_means(self.task)
      self._train_metrics = joint_metrics(
        self.task.build_metrics(training=True),
        self.model,
        self._train_input.inputs_spec,
        [self._train_loss, *self._train_terms],
      )
    self._next_input_step: int | None = 0
    self._loop_loss = LoopLoss(self._train_loss)
    self._task_train_step = compiled_step(self.task.train_step, self._runtime, self._strategy)
    orbit.StandardTrainer.__init__(
      self,
      dataset,
      options=orbit.StandardTrainerOptions(
        use_tf_function=self._options.train_tf_function,
        use_tf_while_loop=self._options.train_tf_while_loop,
        use_tpu_summary_optimization=self._options.allow_tpu_summary,
      ),
    )
