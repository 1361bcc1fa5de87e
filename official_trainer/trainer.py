"""The inner loops: training and evaluation of one model, under any strategy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gin
import orbit
import tensorflow as tf
import tf_keras

from official_trainer.access import Access
from official_trainer.checkpoint.init_report import InitReport
from official_trainer.config import foreign, steps
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.skipped import SkippedBatches
from official_trainer.distribute.compilation import run_options
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.peers import Peers, build_peers
from official_trainer.distribute.replicas import replica_statistics, round_for_exact_mean
from official_trainer.errors import ConfigError, Problem, gathered
from official_trainer.evaluation import Evaluation
from official_trainer.initialisation import initialise
from official_trainer.inner_loop.batch_run import InOne, InParts
from official_trainer.inner_loop.closures import build_execution
from official_trainer.inner_loop.execution import Execution
from official_trainer.inner_loop.retraces import Traces
from official_trainer.optim.accumulate import Accumulator
from official_trainer.optim.build_updates import build_updates
from official_trainer.optim.ema import build_ema
from official_trainer.optim.foreign import without_averaging
from official_trainer.optim.guard import NoGuard, UpdateGuard
from official_trainer.optim.hyperparameters import Hyperparameters, NoHyperparameters
from official_trainer.optim.pruning import NoPruning, Pruning, build_pruning
from official_trainer.optim.schedule_targets import Parts, build_schedules, scheduled_variables
from official_trainer.optim.scheduled import Schedules
from official_trainer.optim.updates import NoUpdates, Updates
from official_trainer.random_state import StepKeyedRandom, draw_seed
from official_trainer.requirements import require_parts
from official_trainer.state import TrainState
from official_trainer.stop import StopRequest
from official_trainer.timing.data_wait import DataWait
from official_trainer.training import Training


@gin.configurable(module="official_trainer")
class Trainer(Training, Evaluation, Access):
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
    steps.require_steps(self._options, "trainer")
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
    self._traces = Traces(in_pieces=self._execution.traces_pieces)
    global_step = self._execution.counter(orbit.utils.create_global_step)
    self._updates = build_updates(optimizer, model, self._options, seed=self._seed, scope=self._execution.train_sums)
    self._updates.build_slots()
    optimizers = [] if optimizer is None else [optimizer, *self._updates.own_optimizers.values()]
    scales = self._options.recovery_learning_rate_factor < 1
    self._hyperparameters = Hyperparameters(*optimizers, scales=scales) if optimizers else NoHyperparameters()
    self._state = TrainState(
      model=model,
      optimizer=optimizer,
      own_optimizers=self._updates.own_optimizers,
      ema=build_ema(
        model,
        averaging or self._options.optimizer_config.ema,
        round_statistics=functools.partial(round_for_exact_mean, num_replicas=self._strategy.num_replicas_in_sync),
        without=scheduled_variables(self._options.schedules, model),
      ),
      global_step=global_step,
      checkpoint_items=getattr(model, "checkpoint_items", None),
    )
    self._schedules = build_schedules(self._options.schedules, Parts(optimizer, self._updates, self._state.ema, model))
    self._random = StepKeyedRandom(model, self._seed)
    self._execution.own_generators(self._random.generators)
    self._statistics = replica_statistics(model.variables)
    guarded = optimizer is not None and self._options.skip_nonfinite_updates
    self._guard = UpdateGuard(optimizer, model) if guarded else NoGuard()
    self._batch_run = self._build_batch_run(self._options.gradient_accumulation_steps)
    self._pruning = build_pruning(model)
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

  def _build_batch_run(self, num_parts: int) -> InOne | InParts:
    if num_parts == 1 or self._optimizer is None:
      return InOne(self._strategy, self._run_options)
    accumulator = Accumulator(self._optimizer, self._updates.trained, num_parts)
    return InParts(self._strategy, self._run_options, accumulator, num_parts)

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
  def schedules(self) -> Schedules:
    """The scalars that schedules move."""
    return self._schedules

  @property
  def updates(self) -> Updates | NoUpdates:
    """What stands between gradients and variables: groups, transformations, norms."""
    return self._updates

  @property
  def pruning(self) -> NoPruning | Pruning:
    """What the model's pruned layers need."""
    return self._pruning

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
  def trace_counts(self) -> Mapping[str, int]:
    """How often the "training" and the "evaluation" step were traced: once each, unless their inputs change."""
    return dict(self._traces.counts)

  @property
  def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
    """What hands calls to the workers of parameter servers; a RuntimeError says where there is none."""
    return self._execution.coordinator

  def initialize(self) -> list[InitReport]:
    """Loads pretrained weights: what the task's `initialize` loads, then what `task.init` and `init_backbone` name.

    Called only when no checkpoint of this run was found, under the strategy's scope.

    Returns:
      A report for each source that the config names.

    Raises:
      ConfigError, CheckpointMismatch: see `initialisation.initialise`.
    """
    self.task.initialize(self.model)
    reports = initialise(self.model, self._config.task)
    self._state.ema.reset()
    return reports

  def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a `tf.distribute.DistributedDataset` from a dataset or a dataset function."""
    return orbit.utils.make_distributed_dataset(self._strategy, dataset_or_fn, *args, **kwargs)
