"""Model Garden's actions, with its names and arguments: for programs that put an `orbit.Controller` together by hand.

A `Session` needs none of them: it recovers, averages and prunes as its config and its model say.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from absl import logging
from official.modeling import optimization

from official_trainer.actions.recover import divergence
from official_trainer.errors import TrainingDiverged
from official_trainer.optim.pruning import build_pruning

Output = Mapping[str, Any]


class PruningAction:
  """After each training loop: applies the masks of pruned layers, and writes how sparse they are."""

  def __init__(self, export_dir: str, model: tf_keras.Model, optimizer: tf_keras.optimizers.Optimizer):
    """Prepares the model's pruned layers for training.

    Args:
      export_dir: folder below which the sparsity is written for TensorBoard, in `metrics`.
      model: the model that is trained, pruned or not.
      optimizer: its optimizer, whose iterations are the steps of the curve.
    """
    self._pruning = build_pruning(model)
    self._pruning.begin()
    self._optimizer = optimizer
    self._writer = tf.summary.create_file_writer(os.path.join(os.fspath(export_dir), "metrics"))

  def __call__(self, output: Output) -> None:
    """Runs the action; what the loop returned is not looked at."""
    del output
    self._pruning.mask()
    with self._writer.as_default(step=int(self._optimizer.iterations.numpy())):
      for name, value in self._pruning.sparsities().items():
        tf.summary.scalar(name, value)
    self._writer.flush()


class EMACheckpointing:
  """After each evaluation: saves a checkpoint with the averaged weights in place, in `ema_checkpoints`."""

  def __init__(
    self,
    export_dir: str,
    optimizer: tf_keras.optimizers.Optimizer,
    checkpoint: tf.train.Checkpoint,
    max_to_keep: int = 1,
  ):
    """Stores its arguments.

    Args:
      export_dir: the folder in which `ema_checkpoints` is made.
      optimizer: Model Garden's ExponentialMovingAverage, with its averages made.
      checkpoint: what is saved; it holds the model.
      max_to_keep: how many checkpoints stay.

    Raises:
      ValueError: if the optimizer does not average. Our `Trainer` averages outside of it: there, use
        `trainer.export` (docs/how_to/export.md).
    """
    if not isinstance(optimizer, optimization.ExponentialMovingAverage):
      raise ValueError(
        f"Optimizer has to be instance of optimization.ExponentialMovingAverage, got {type(optimizer).__name__}. The"
        " averages of an official_trainer Trainer are exported by --mode=export."
      )
    self._optimizer = optimizer
    self._manager = tf.train.CheckpointManager(
      checkpoint,
      directory=os.path.join(os.fspath(export_dir), "ema_checkpoints"),
      max_to_keep=max_to_keep,
      checkpoint_name="average_weights",
    )

  def __call__(self, output: Output) -> None:
    """Saves; the weights are afterwards what they were, to the bit."""
    del output
    with self._averages_in_place():
      self._manager.save(checkpoint_number=self._optimizer.iterations)

  @contextlib.contextmanager
  def _averages_in_place(self) -> Iterator[None]:
    # The wrapper's own swap adds and subtracts, which loses bits.
    weights, averages = self._optimizer._model_weights, self._optimizer._average_weights  # noqa: SLF001
    held = [tf.identity(weight) for weight in weights]
    try:
      for weight, average in zip(weights, averages, strict=True):
        weight.assign(average)
      yield
    finally:
      for weight, value in zip(weights, held, strict=True):
        weight.assign(value)


class RecoveryCondition:
  """Says after each training loop whether it has diverged."""

  def __init__(
    self,
    global_step: tf.Variable,
    loss_upper_bound: float,
    recovery_begin_steps: int = 0,
    recovery_max_trials: int = 3,
  ):
    """Stores its arguments.

    Args:
      global_step: number of completed updates.
      loss_upper_bound: a `training_loss` above it counts as diverged.
      recovery_begin_steps: from which step on the bound holds; a loss that is not finite always counts.
      recovery_max_trials: how often it may say so.
    """
    self.global_step = global_step
    self.loss_upper_bound = loss_upper_bound
    self.recovery_begin_steps = recovery_begin_steps
    self.recovery_max_trials = recovery_max_trials
    self.recover_counter = 0

  def __call__(self, outputs: Output) -> bool:
    """Looks at `training_loss`.

    Raises:
      TrainingDiverged: if it has diverged more often than it may. It is a RuntimeError.
    """
    step = int(self.global_step.numpy())
    problem = divergence(
      np.asarray(outputs["training_loss"]).item(),
      step,
      upper_bound=self.loss_upper_bound,
      begin_steps=self.recovery_begin_steps,
    )
    if problem is None:
      return False
    self.recover_counter += 1
    if self.recover_counter > self.recovery_max_trials:
      raise TrainingDiverged(step, f"{problem}; it has diverged {self.recover_counter} times")
    return True


class RecoveryAction:
  """Restores the newest checkpoint of a manager."""

  def __init__(self, checkpoint_manager: tf.train.CheckpointManager):
    self.checkpoint_manager = checkpoint_manager

  def __call__(self, output: Output) -> None:
    """Runs the action; what the loop returned is not looked at."""
    del output
    logging.warning("Going back to the checkpoint %s.", self.checkpoint_manager.restore_or_initialize())
