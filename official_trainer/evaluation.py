"""The evaluating half of a trainer: one pass over the evaluation data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import orbit
import tensorflow as tf
import tf_keras
from absl import logging

from official_trainer.checkpoint.best import best_so_far, names_of
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.padding import Batch
from official_trainer.distribute.peers import Peers
from official_trainer.execution import Execution
from official_trainer.feed import Feed, SuppliedFeed
from official_trainer.metrics.compiled import joint_metrics
from official_trainer.optim.pruning import NoPruning, Pruning
from official_trainer.requirements import require_enough, require_whole
from official_trainer.state import TrainState
from official_trainer.step_loss import add_loss, mask_argument
from official_trainer.task import LOSS_WEIGHT


class Evaluation(orbit.StandardEvaluator):
  """What `Trainer` inherits for evaluation; it has the parts that are named here, and knows its strategy and task."""

  _state: TrainState
  _execution: Execution
  _options: TrainerConfig
  _peers: Peers
  _pruning: NoPruning | Pruning
  _validation_loss: tf_keras.metrics.Metric
  _validation_input: Feed | None = None  # Until it is made.
  eval_batches: tf.Variable

  @property
  def validation_loss(self) -> tf_keras.metrics.Metric:
    return self._validation_loss

  @property
  def validation_metrics(self) -> list[tf_keras.metrics.Metric]:
    return self._validation_metrics

  def validation_batches(self) -> Any:
    """Returns the validation data from their beginning, for a look at them beside the evaluations.

    Also of a trainer that does not evaluate, for which they are made now.
    """
    return (self._validation_input or self._task_feed()).dataset(0)

  def evaluate(self, num_steps: tf.Tensor) -> Mapping[str, Any] | None:
    """Evaluates `num_steps` batches, all of them when -1, with the averaged weights where there are any.

    The raw weights are back in place afterwards, also when the evaluation raises or is interrupted.

    Raises:
      ValueError: if the evaluation set is empty.
      RuntimeError: if the whole set was asked for, and the evaluation ended before.
    """
    with self._state.ema.swapped_in(self._state.step), self._pruning.held():
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

  def _init_evaluation(self, dataset: Any) -> None:
    self._is_rehearsal = False
    supplied = None if dataset is None else SuppliedFeed(dataset)
    self._validation_input = supplied or self._task_feed()
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

  def _task_feed(self) -> Feed:
    return self._execution.validation_feed(
      self.task,
      self.config.task.validation_data,
      model=self.model,
      seed=self._seed,
      distribute=self.distribute_dataset,
    )
