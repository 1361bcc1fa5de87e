"""A trainer's state from outside, between two calls of `train`: read it, replace it, start anew from somewhere else."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.checkpoint.best_rules import build_best_checkpoints
from official_trainer.checkpoint.locate import find_checkpoint
from official_trainer.checkpoint.restoring import restore_exactly
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.padding import Batch, pad_batches
from official_trainer.data.skipped import SkippedBatches
from official_trainer.distribute.peers import Peers
from official_trainer.distribute.replicas import split_batch
from official_trainer.errors import ConfigError
from official_trainer.inner_loop.step_loss import mask_argument
from official_trainer.optim.build_updates import build_updates
from official_trainer.random_state import StepKeyedRandom, seed_everything
from official_trainer.state import TrainState, variables_of
from official_trainer.task import LOSS_WEIGHT, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
  """A copy of a trainer's state in the memory of the host; changing it changes nothing else.

  Attributes:
    step: number of completed updates.
    weights: the raw weights, in the order of `model.variables`.
    averages: their averages, empty without any.
    slots: the optimizer's variables, empty without an optimizer.
    host: history, records and the like, as JSON values.
  """

  step: int
  weights: list[np.ndarray]
  averages: list[np.ndarray]
  slots: list[np.ndarray]
  host: dict[str, Any]


class Access:
  """What `Trainer` inherits for those who look at it, or change it, from outside."""

  _state: TrainState
  _options: TrainerConfig
  _peers: Peers
  _random: StepKeyedRandom
  _seed: int
  _skipped: SkippedBatches
  _next_input_step: int | None

  def get_weights(self) -> list[np.ndarray]:
    """Returns the raw weights, in the order of `model.variables`; statistics of replicas as their mean."""
    with self.strategy.scope(), self._state.ema.swapped_out():
      return _values(self.model.variables)

  def set_weights(self, weights: Sequence[Any], *, restart_averages: bool = False) -> None:
    """Replaces the raw weights, on all replicas. Slots, averages and the step stay as they are.

    Args:
      weights: what `get_weights` returns, or arrays of these shapes.
      restart_averages: whether the averages, too, begin anew with these weights.

    Raises:
      ValueError: if their number or a shape is another; then nothing was changed.
    """
    with self.strategy.scope(), self._state.ema.swapped_out():
      _assign(self.model.variables, weights)
      if restart_averages:
        self._state.ema.reset()

  def snapshot(self) -> Snapshot:
    """Returns a copy of the whole state."""
    state = self._state
    with self.strategy.scope(), state.ema.swapped_out():
      return Snapshot(
        step=state.step,
        weights=_values(state.model.variables),
        averages=_values(state.ema.averages),
        slots=_values(state.slots()),
        host=json.loads(state.host.dumps()),
      )

  def compute_loss(self, inputs: Any, *, training: bool = False) -> float:
    """Returns the loss of a batch, as the task's steps compute it. Nothing is updated: no weight, statistic or metric.

    Args:
      inputs: this process's rows of a batch of any size: what the task's steps take, tensors or arrays [batch, ...].
      training: whether the model runs in training mode, with the random masks of the present step.

    Raises:
      TypeError: for a task that was not written for this library.
    """
    if not isinstance(self.task, Task):
      raise TypeError(f"compute_loss needs a task of official_trainer, got a {type(self.task).__name__}.")
    replicas = self.strategy.num_replicas_in_sync // self._peers.num
    inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
    size = int(tf.nest.flatten(inputs)[0].shape[0])
    batch = next(iter(pad_batches(tf.data.Dataset.from_tensors(inputs), batch_size=size, multiple=replicas)))
    with self.strategy.scope(), self._unchanged():
      loss, weight = self._summed_loss(batch, training)
    return float(loss / weight)

  def reset(self, model_dir: str | None = None, init_checkpoint: str | None = None) -> int:
    """Begins another run with this trainer, whose compiled steps stay as they are.

    The state becomes that of the newest checkpoint in `model_dir`; where there is none, that of a fresh run: initial
    weights from the seed, and then those of `init_checkpoint` or what the task's `initialize` loads. Best checkpoints
    go to `model_dir` from now on. A `Session` of that folder does the rest.

    Args:
      model_dir: the other run's folder, or None for none.
      init_checkpoint: where a fresh run's weights come from; a prefix or a folder.

    Returns:
      The step.

    Raises:
      ConfigError: if there is no checkpoint at `init_checkpoint`.
      CheckpointMismatch: if a checkpoint is that of another model.
      ValueError: if the task builds another model than the one that this trainer has.
    """
    prefix = None if init_checkpoint is None else find_checkpoint(init_checkpoint)
    if init_checkpoint is not None and prefix is None:
      raise ConfigError.of("init_checkpoint", f"there is no checkpoint at {init_checkpoint!r}.")
    state = self._state
    with self.strategy.scope():
      store = None if model_dir is None else CheckpointStore(model_dir, state.checkpoint)
      if store is not None and store.restore_latest() is not None:
        state.unpack()
      else:
        self._begin_anew(prefix)
    self._skipped = SkippedBatches.of(getattr(getattr(self.config.task, "train_data", None), "skip_steps", ()))
    self._next_input_step = None
    self.keep_window(False)
    if self.checkpoint_exporter is not None:
      records = state.host.best
      self.checkpoint_exporter = build_best_checkpoints(self._options, model_dir, records) if model_dir else None
    return state.step

  def _begin_anew(self, prefix: str | None) -> None:
    """Puts the state to what it was when this trainer was built, with weights from a checkpoint if one is given."""
    state, task = self._state, self.task
    seed_everything(self._seed)
    fresh = task.build_model()
    _assign(state.model.variables, fresh.variables)
    if state.optimizer is not None:
      optimizer = task.create_optimizer(self.config.trainer.optimizer_config, self.config.runtime)
      updates = build_updates(optimizer, fresh, self._options, seed=self._seed)
      updates.build_slots()
      optimizers = (optimizer, *updates.own_optimizers.values())
      _assign(state.slots(), [variable for each in optimizers for variable in variables_of(each)])
    state.global_step.assign(0)
    state.host.clear()
    self.hyperparameters.apply()
    if prefix is None:
      self.initialize()
    else:
      restore_exactly(tf.train.Checkpoint(model=state.model), prefix, unused_roots=None)
      state.ema.reset()

  @functools.cached_property
  def _summed_loss(self) -> Any:
    def on_replica(batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
      if training:
        self._random.assign(self.global_step)
      logs = self.task.compute_loss(batch.inputs, model=self.model, training=training, **mask_argument(batch))
      weight = tf.cast(logs[LOSS_WEIGHT], tf.float32)
      return tf.cast(logs[self.task.loss], tf.float32) * weight, weight

    def summed(batch: Batch, training: bool) -> list[tf.Tensor]:
      replicas = self.strategy.num_replicas_in_sync // self._peers.num
      local = split_batch(self.strategy, batch, replicas)
      sums = self.strategy.run(on_replica, args=(local, training))
      return [self.strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None) for each in sums]

    return tf.function(summed)

  @contextlib.contextmanager
  def _unchanged(self) -> Iterator[None]:
    """Puts back what a forward pass of the model may change: statistics, and metrics of its own."""
    variables = [*self.model.non_trainable_variables, *(v for metric in self.model.metrics for v in metric.variables)]
    before = [[tf.identity(local) for local in self.strategy.experimental_local_results(v)] for v in variables]
    try:
      yield
    finally:
      for variable, values in zip(variables, before, strict=True):
        for local, value in zip(self.strategy.experimental_local_results(variable), values, strict=True):
          local.assign(value)


def _values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
  return [np.array(variable.numpy()) for variable in variables]


def _assign(variables: Sequence[tf.Variable], values: Sequence[Any]) -> None:
  """Assigns all or nothing.

  Raises:
    ValueError: if they do not fit.
  """
  if len(values) != len(variables):
    raise ValueError(f"there are {len(variables)} variables, got {len(values)} values.")
  wrong = [
    f"{variable.name} {tuple(variable.shape)}, got {np.shape(value)}"
    for variable, value in zip(variables, values, strict=True)
    if tuple(variable.shape) != tuple(np.shape(value))
  ]
  if wrong:
    raise ValueError(f"{len(wrong)} values have another shape: {'; '.join(wrong[:5])}.")
  for variable, value in zip(variables, values, strict=True):
    variable.assign(value)
