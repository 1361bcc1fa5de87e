"""The inner loops: training and evaluation of one model, under any strategy."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import orbit
import tensorflow as tf
import tf_keras
from absl import logging

from official_trainer.checkpoint.best import best_so_far, names_of
from official_trainer.closures import build_execution
from official_trainer.config import foreign
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.anchor import Anchor
from official_trainer.data.padding import Batch
from official_trainer.data.skipped import SkippedBatches
from official_trainer.distribute.compilation import compiled_step, run_options
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.peers import Peers, build_peers
from official_trainer.distribute.replicas import average_statistics, replica_statistics, round_for_exact_mean
from official_trainer.errors import ConfigError, Problem, gathered
from official_trainer.execution import Execution
from official_trainer.feed import Feed, SuppliedFeed
from official_trainer.metrics.compiled import joint_metrics
from official_trainer.optim.build import applied_learning_rate, build_slots
from official_trainer.optim.ema import build_ema
from official_trainer.optim.foreign import without_averaging
from official_trainer.optim.guard import NoGuard, UpdateGuard
from official_trainer.optim.hyperparameters import Hyperparameters, NoHyperparameters
from official_trainer.random_state import StepKeyedRandom, draw_seed, look_for_unsaved_randomness
from official_trainer.requirements import require_enough, require_parts, require_whole
from official_trainer.state import TrainState
from official_trainer.step_loss import LoopLoss, add_loss, mask_argument
from official_trainer.stop import StopRequest
from official_trainer.task import LOSS_WEIGHT
from official_trainer.timing.data_wait import DataWait


@gin.configurable(module="official_trainer")
class Trainer(orbit.StandardTrainer, orbit.StandardEvaluator):
  """Trains and evaluates a task's model; takes what `official.core.base_trainer.Trainer` takes.

  One call of `train(n)` is

      train_loop_begin()                       # seek the input to the step; reset metrics
      n times, compiled:
        inputs = next_train_inputs(iterator)   # host side
        on each replica: task.train_step(...)  # generators set from (seed, step, replica)
        step += 1; average per-replica statistics; move the averages
      return train_loop_end()                  # metrics and learning rate

  and one call of `evaluate(n)`, with averaged weights swapped in where there are any,

      eval_begin(); n times: eval_step -> eval_reduce; return eval_end()   # exports the best checkpoint

  Works alone, or in a `Loop` that adds checkpoints, history and the rest.
  """

  def __init__(
    self,
    config: Any,
    task: Any,
    model: tf_keras.Model,
    optimizer: Any,
    train: bool = True,
    evaluate: bool = True,
    train_dataset: Any = None,
    validation_dataset: Any = None,
    checkpoint_exporter: Any = None,
    *,
    seed: int | None = None,
    stop: StopRequest | None = None,
    data_wait: DataWait | None = None,
  ):
    """Builds the state and the inputs. Call under the strategy's scope.

    Args:
      config: an ExperimentConfig, or any object with the attributes `trainer` and `task` (and `runtime`).
      task: a Task, ours or Model Garden's.
      model: the task's model, built.
      optimizer: a tf-keras optimizer of either API, or None for evaluation only.
      train: whether it will train; otherwise no training input is built.
      evaluate: whether it will evaluate.
      train_dataset: a dataset of per-replica batches to use in place of the task's; keeps no position on resume.
      validation_dataset: likewise for evaluation; iterated anew in every evaluation.
      checkpoint_exporter: an object with `maybe_export_checkpoint(checkpoint, logs, step)` and `best_ckpt_logs`.
      seed: the run's seed; None takes `runtime.seed`, or draws one.
      stop: looked at between two steps; once set, `train` returns early and `evaluate` raises EvaluationStopped.
      data_wait: measures how long training waits for its input.

    Raises:
      AttributeError: if the config lacks a part that is needed.
      ConfigError: all that is wrong with both inputs: no batch size, data that cannot be read, more validation steps
        than there are batches.
      ValueError: if two metrics have the same name.
    """
    self._strategy = tf.distribute.get_strategy()
    self._peers = build_peers(self._strategy)
    require_parts(config, train and train_dataset is None, evaluate and validation_dataset is None)
    self._config = config
    self._task = task
    self._model = model
    self._checkpoint_exporter = checkpoint_exporter
    self._options = foreign.read(TrainerConfig, config.trainer)
    self._runtime = foreign.read(RuntimeConfig, getattr(config, "runtime", None))
    seed = self._runtime.seed if seed is None else seed
    self._seed = draw_seed() if seed is None else seed
    self._run_options = run_options(self._runtime)
    optimizer, averaging = without_averaging(optimizer)
    self._optimizer = optimizer
    self._execution = build_execution(
      self._strategy, self._options, self._runtime, optimizer=optimizer, stop=stop, data_wait=data_wait
    )
    self.data_wait = self._execution.data_wait
    global_step = self._execution.counter(orbit.utils.create_global_step)
    if optimizer is not None:
      build_slots(optimizer, model)
    scales = self._options.recovery_learning_rate_factor < 1
    self._hyperparameters = NoHyperparameters() if optimizer is None else Hyperparameters(optimizer, scales=scales)
    self._state = TrainState(
      model=model,
      optimizer=optimizer,
      ema=build_ema(
        model,
        averaging or self._options.optimizer_config.ema,
        round_statistics=functools.partial(round_for_exact_mean, num_replicas=self._strategy.num_replicas_in_sync),
      ),
      global_step=global_step,
      checkpoint_items=getattr(model, "checkpoint_items", None),
    )
    self._random = StepKeyedRandom(model, self._seed)
    self._execution.own_generators(self._random.generators)
    self._statistics = replica_statistics(model.variables)
    guarded = optimizer is not None and self._options.skip_nonfinite_updates
    self._guard = UpdateGuard(optimizer, model) if guarded else NoGuard()
    self._keep_window = False
    self._skipped = SkippedBatches.of(getattr(getattr(config.task, "train_data", None), "skip_steps", ()))

    with self._execution.train_sums():
      self._train_loss = tf_keras.metrics.Mean("training_loss", dtype=tf.float32)
    with self._execution.eval_sums():
      self._validation_loss = tf_keras.metrics.Mean("validation_loss", dtype=tf.float32)
      self.eval_batches = tf.Variable(
        0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="eval_batches"
      )
    self._train_metrics: list[tf_keras.metrics.Metric] = []
    self._validation_metrics: list[tf_keras.metrics.Metric] = []
    problems: list[Problem] = []
    if train:
      with gathered(problems):
        self._init_training(train_dataset)
    if evaluate:
      with gathered(problems):
        self._init_evaluation(validation_dataset)
    if problems:
      raise ConfigError(problems)

  # ---- What it is made of -------------------------------------------------------------------------------------------

  @property
  def strategy(self) -> tf.distribute.Strategy:
    return self._strategy

  @property
  def peers(self) -> Peers:
    """The processes that train together."""
    return self._peers

  @property
  def config(self) -> Any:
    """The config object that was given."""
    return self._config

  @property
  def task(self) -> Any:
    return self._task

  @property
  def model(self) -> tf_keras.Model:
    return self._model

  @property
  def optimizer(self) -> Any:
    """The optimizer, without averaging around it; None if this trainer only evaluates."""
    return self._optimizer

  @property
  def hyperparameters(self) -> Hyperparameters | NoHyperparameters:
    """The optimizer's numbers that a restore overwrites, though the config says them."""
    return self._hyperparameters

  @property
  def state(self) -> TrainState:
    return self._state

  @property
  def seed(self) -> int:
    return self._seed

  @property
  def global_step(self) -> tf.Variable:
    """int64 scalar, the number of completed updates."""
    return self._state.global_step

  @property
  def checkpoint(self) -> tf.train.Checkpoint:
    """The training checkpoint, with the roots `global_step`, `model`, `optimizer`, `ema` and `host`."""
    return self._state.checkpoint

  @property
  def checkpoint_exporter(self) -> Any:
    return self._checkpoint_exporter

  @checkpoint_exporter.setter
  def checkpoint_exporter(self, exporter: Any) -> None:
    self._checkpoint_exporter = exporter

  @property
  def execution(self) -> Execution:
    """How the steps are run."""
    return self._execution

  @property
  def train_loss(self) -> tf_keras.metrics.Metric:
    return self._train_loss

  @property
  def validation_loss(self) -> tf_keras.metrics.Metric:
    return self._validation_loss

  @property
  def train_metrics(self) -> list[tf_keras.metrics.Metric]:
    return self._train_metrics

  @property
  def validation_metrics(self) -> list[tf_keras.metrics.Metric]:
    return self._validation_metrics

  @property
  def report_metrics(self) -> list[tf_keras.metrics.Metric]:
    """What a report on training is made of; reset when one begins."""
    return [*self.train_metrics, self.train_loss, *self._guard.metrics]

  @property
  def train_input(self) -> Feed:
    """Where the training batches come from."""
    return self._train_input

  def initialize(self) -> None:
    """Loads pretrained weights. Called only when no checkpoint of this run was found."""
    self.task.initialize(self.model)
    self._state.ema.reset()

  def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a `tf.distribute.DistributedDataset` from a dataset or a dataset function."""
    return orbit.utils.make_distributed_dataset(self._strategy, dataset_or_fn, *args, **kwargs)

  # ---- Training -----------------------------------------------------------------------------------------------------

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
    if not self._keep_window:
      for metric in self.report_metrics:
        metric.reset_state()
    self._loop_loss.begin(is_reset=not self._keep_window)

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
    return logs

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
    batch = self._train_input.to_replicas(inputs)
    with self._guard.across_replicas():
      self.strategy.run(self._replica_train_step, args=(batch,), options=self._run_options)
      with self._train_input.awaited(inputs):
        self.global_step.assign_add(1)
        average_statistics(self.strategy, self._statistics)
    with self._train_input.awaited(inputs):
      self._guard.unless_skipped(lambda: self._state.ema.update(self.global_step))

  def train_loop_end(self) -> dict[str, Any]:
    """Returns the metrics since the start of the report, and the learning rate of the last update. Runs eagerly."""
    reported = self.report_metrics
    if self._guard.has_skipped and self._train_loss.count.numpy() == 0:
      reported = [*self._guard.metrics]  # Not one update was applied: a loss of 0 would be a lie.
    logs = {metric.name: metric.result() for metric in reported}
    logs["learning_rate"] = applied_learning_rate(self.optimizer, self.global_step)
    return logs

  def _replica_train_step(self, batch: Batch) -> None:
    accumulators = [variable for metric in [*self.train_metrics, self.train_loss] for variable in metric.variables]
    with self._train_input.awaited(batch), self._guard.on_replica(accumulators):
      self._random.assign(self.global_step)
      logs = self._task_train_step(
        batch.inputs, model=self.model, optimizer=self.optimizer, metrics=self.train_metrics, **mask_argument(batch)
      )
      look_for_unsaved_randomness(refuse=self._options.exact_resume)
      add_loss(self._train_loss, logs, self.task.loss, batch)

  # ---- Evaluation ---------------------------------------------------------------------------------------------------

  def evaluate(self, num_steps: tf.Tensor) -> Mapping[str, Any] | None:
    """Evaluates `num_steps` batches, all of them when -1, with the averaged weights where there are any.

    The raw weights are back in place afterwards, also when the evaluation raises or is interrupted.

    Raises:
      ValueError: if the evaluation set is empty.
      RuntimeError: if the whole set was asked for, and the evaluation ended before.
    """
    with self._state.ema.swapped_in(self._state.step):
      self._wants_all_batches = int(num_steps) == -1
      return super().evaluate(num_steps)

  def create_eval_loop_fn(self, has_state: bool) -> Any:
    """Returns the loop over `eval_step`; one that runs in Python is left when a stop is asked for."""
    return self._execution.eval_loop(
      self.eval_step, self._validation_input, functools.partial(super().create_eval_loop_fn, has_state)
    )

  def eval_begin(self) -> None:
    """Resets the metrics. Runs eagerly."""
    for metric in [*self.validation_metrics, self.validation_loss]:
      metric.reset_state()
    self.eval_batches.assign(0)

  def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the inputs of one evaluation step and logs that stay on the host. Runs on the host, traced.

    The logs are merged with those of `task.validation_step` and reach `task.aggregate_logs`: for what accelerators
    cannot take, such as string ids.
    """
    return next(iterator), {}

  def eval_step(self, iterator: Any) -> dict[str, Any]:
    """Evaluates one batch. Runs in cross-replica context, traced."""
    inputs, passthrough_logs = self.next_eval_inputs(iterator)
    batch = self._validation_input.to_replicas(inputs)
    outputs = self.strategy.run(self._replica_eval_step, args=(batch,), options=self._run_options)
    with self._validation_input.awaited(inputs):
      self.eval_batches.assign_add(1)
    logs = tf.nest.map_structure(self._peers.results, outputs)
    if clash := sorted(set(logs) & set(passthrough_logs)):
      logging.warning(
        "The keys %s are both in the passthrough logs and in the model's logs; the model's are used.", clash
      )
    return {**passthrough_logs, **logs}

  def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
    """Gathers one step's logs on the host."""
    return self.task.aggregate_logs(state, step_outputs)

  def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
    """Returns the metrics of the evaluation and exports the best checkpoint. Runs eagerly, averages still in place."""
    require_whole(int(self.eval_batches.numpy()), self.eval_dataset if self._wants_all_batches else None)
    logs = {metric.name: metric.result() for metric in self.validation_metrics}
    if self.validation_loss.count.numpy() != 0:
      logs[self.validation_loss.name] = self.validation_loss.result()
    if aggregated_logs:
      logs.update(self.task.reduce_aggregated_logs(aggregated_logs, global_step=tf.convert_to_tensor(self.global_step)))
    if self._checkpoint_exporter is not None and not self._is_rehearsal:
      self._checkpoint_exporter.maybe_export_checkpoint(self.checkpoint, logs, self._state.step)
      logs.update(best_so_far(self._options, self._checkpoint_exporter.best_ckpt_logs or {}))
    return logs

  def rehearse_evaluation(self) -> list[str]:
    """Evaluates one batch, discards the result, and returns the names that an evaluation reports."""
    self._is_rehearsal = True
    try:
      return names_of(self.evaluate(tf.constant(1)) or {})
    finally:
      self._is_rehearsal = False

  def _replica_eval_step(self, batch: Batch) -> dict[str, Any]:
    with self._validation_input.awaited(batch):
      logs = self.task.validation_step(
        batch.inputs, model=self.model, metrics=self.validation_metrics, **mask_argument(batch)
      )
      if self.task.loss in logs:
        add_loss(self._validation_loss, logs, self.task.loss, batch)
    return {key: value for key, value in logs.items() if key != LOSS_WEIGHT}

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
    )
    if self._options.exact_resume and not self._train_input.exact:
      raise ValueError(f"trainer.exact_resume is set, but {self._train_input.position}.")
    with self._execution.train_sums():
      self._train_metrics = joint_metrics(
        self.task.build_metrics(training=True), self.model, self._train_input.inputs_spec, self._train_loss
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

  def _init_evaluation(self, dataset: Any) -> None:
    self._is_rehearsal = False
    supplied = None if dataset is None else SuppliedFeed(dataset)
    self._validation_input: Feed = supplied or self._execution.validation_feed(
      self.task,
      self.config.task.validation_data,
      model=self.model,
      seed=self._seed,
      distribute=self.distribute_dataset,
    )
    evaluated = self._validation_input.dataset(0)
    require_enough(self._validation_input.num_batches, self._options.validation_steps)
    with self._execution.eval_sums():
      self._validation_metrics = joint_metrics(
        self.task.build_metrics(training=False), self.model, self._validation_input.inputs_spec, self._validation_loss
      )
    orbit.StandardEvaluator.__init__(
      self,
      evaluated,
      options=orbit.StandardEvaluatorOptions(
        use_tf_function=self._options.eval_tf_function,
        use_tf_while_loop=self._execution.evaluates_in_graph,
      ),
    )
