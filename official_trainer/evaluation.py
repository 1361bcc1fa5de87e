"""The evaluating half of a trainer: one pass over the data of each evaluation set."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import orbit
import tensorflow as tf
import tf_keras
from absl import logging

from official_trainer.checkpoint.best_rules import best_so_far
from official_trainer.checkpoint.nested_logs import names_of
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.padding import Batch
from official_trainer.distribute.peers import Peers
from official_trainer.evaluation_sets import VALIDATION_PATH, EvaluationSet, EvaluationSets, build_sets, joined
from official_trainer.history import VALIDATION
from official_trainer.inner_loop.execution import Execution, LoopFn
from official_trainer.inner_loop.feed import Feed, SuppliedFeed
from official_trainer.inner_loop.retraces import Traces
from official_trainer.inner_loop.step_loss import add_loss, add_terms, build_term_means, mask_argument
from official_trainer.metrics.compiled import joint_metrics
from official_trainer.optim.pruning import NoPruning, Pruning
from official_trainer.optim.scheduled import Schedules
from official_trainer.random_state import StepKeyedRandom
from official_trainer.requirements import require_whole
from official_trainer.state import TrainState
from official_trainer.task import LOSS_WEIGHT

EVALUATION = "evaluation"


def _traced(name: str) -> str:
  """Returns what the step of an evaluation set is called where traces are counted: each set may be traced once."""
  return EVALUATION if name == VALIDATION else f"{EVALUATION} ({name})"


class Evaluation(orbit.StandardEvaluator):
  """What `Trainer` inherits for evaluation; it has the parts that are named here, and knows its strategy and task."""

  _state: TrainState
  _schedules: Schedules
  _execution: Execution
  _options: TrainerConfig
  _peers: Peers
  _sets: EvaluationSets | None = None  # Until they are made.
  _pruning: NoPruning | Pruning
  _validation_loss: tf_keras.metrics.Metric
  _random: StepKeyedRandom
  eval_batches: tf.Variable
  _traces: Traces

  @property
  def validation_loss(self) -> tf_keras.metrics.Metric:
    return self._validation_loss

  @property
  def validation_metrics(self) -> list[tf_keras.metrics.Metric]:
    return self._validation_metrics

  @property
  def evaluation_set_names(self) -> list[str]:
    """The names of the sets that are evaluated besides the validation set."""
    return self._sets.names

  @property
  def evaluated_set(self) -> str:
    """Which set is evaluated at the moment: "validation", or the name of a named one."""
    return self._sets.present.name

  @property
  def eval_dataset(self) -> Any:
    """The dataset of the set that is evaluated. One that is set is used in place of the task's validation data."""
    return self._sets.present.dataset

  @eval_dataset.setter
  def eval_dataset(self, dataset: Any) -> None:
    self._sets.present.dataset = dataset

  @property
  def _validation_input(self) -> Feed:
    """Where the batches of the set come from that is evaluated."""
    return self._sets.present.feed

  def validation_batches(self) -> Any:
    """Returns the validation data from their beginning, for a look at them beside the evaluations.

    Also of a trainer that does not evaluate, for which they are made now.
    """
    if self._sets is not None:
      return self._sets.validation.feed.dataset(0)
    return self._feed_of(self.config.task.validation_data, VALIDATION_PATH).dataset(0)

  def evaluate(self, num_steps: tf.Tensor) -> Mapping[str, Any] | None:
    """Evaluates each set, with the averaged weights where there are any, and exports the best checkpoint.

    The raw weights are back in place afterwards, also when the evaluation raises or is interrupted.

    Args:
      num_steps: batches of each set; all of them when -1.

    Returns:
      The logs of the validation set, with those of each named set nested under its name.

    Raises:
      ValueError: if an evaluation set is empty.
      RuntimeError: if the whole set was asked for, and the evaluation ended before.
      ConfigError: if a set has the name of a metric.
    """
    self._schedules.set_for_evaluation(self._state.host.history.as_of_evaluation, self._state.step)
    with self._state.ema.swapped_in(self._state.step), self._pruning.held():
      logs = self._evaluate_set(self._sets.validation, num_steps)
      logs = joined(logs, {name: self._evaluate_set(one, num_steps) for name, one in self._sets.named.items()})
      if self._checkpoint_exporter is not None and not self._is_rehearsal:
        self._checkpoint_exporter.maybe_export_checkpoint(self.checkpoint, logs, self._state.step)
        logs.update(best_so_far(self._options, self._checkpoint_exporter.best_ckpt_logs or {}))
    return logs

  def _evaluate_set(self, one: EvaluationSet, num_steps: tf.Tensor) -> dict[str, Any]:
    self._wants_all_batches = int(num_steps) == -1
    with self._sets.evaluating(one):
      one.begin(self._state.host.history.num_before(self._state.step, one.name), int(num_steps))
      logs = dict(super().evaluate(num_steps) or {})
    self._traces.settle(_traced(one.name))
    return logs

  def create_eval_loop_fn(self, has_state: bool) -> LoopFn:
    """Returns the loop over `eval_step`, one for each set; one in Python is left when a stop is asked for."""
    orbits = functools.partial(super().create_eval_loop_fn, has_state)

    def make() -> LoopFn:
      return self._execution.eval_loop(self.eval_step, self._validation_input, orbits)

    def loop(iterator: Any, num_steps: tf.Tensor, **state: Any) -> Any:
      return self._sets.present.loop(make)(iterator, num_steps, **state)

    return loop

  def eval_begin(self) -> None:
    """Resets the metrics, before each set. Runs eagerly."""
    for metric in [*self.validation_metrics, self.validation_loss, *self._validation_terms]:
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
    self._traces.note(_traced(self.evaluated_set), inputs)
    batch = self._validation_input.to_replicas(inputs)
    outputs = self.strategy.run(self._replica_eval_step, args=(batch,), options=self._run_options)
    with self._validation_input.awaited(inputs):
      self.eval_batches.assign_add(1)
    if not self._options.gather_evaluation_outputs:
      return {}
    logs = tf.nest.map_structure(self._peers.results, outputs)
    if clash := sorted(set(logs) & set(passthrough_logs)):
      logging.warning(
        "The keys %s are both in the passthrough logs and in the model's logs; the model's are used.", clash
      )
    return {**passthrough_logs, **logs}

  def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
    """Gathers one step's logs on the host, unless the config leaves that out."""
    if not self._options.gather_evaluation_outputs:
      return state
    return self.task.aggregate_logs(state, step_outputs)

  def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
    """Returns the metrics of one set. Runs eagerly, averages still in place."""
    whole = self.eval_dataset if self._wants_all_batches else None
    require_whole(int(self.eval_batches.numpy()), whole, self._sets.present.path)
    logs = {metric.name: metric.result() for metric in self.validation_metrics}
    if self.validation_loss.count.numpy() != 0:
      logs.update({metric.name: metric.result() for metric in (self.validation_loss, *self._validation_terms)})
    if aggregated_logs:
      logs.update(self.task.reduce_aggregated_logs(aggregated_logs, global_step=tf.convert_to_tensor(self.global_step)))
    return logs

  def rehearse_evaluation(self) -> list[str]:
    """Evaluates one batch of each set, discards the result, and returns the names that an evaluation reports."""
    self._is_rehearsal = True
    try:
      return names_of(self.evaluate(tf.constant(1)) or {})
    finally:
      self._is_rehearsal = False

  def _replica_eval_step(self, batch: Batch) -> dict[str, Any]:
    with self._validation_input.awaited(batch):
      self._random.assign_for_evaluation(self.eval_batches)
      logs = self.task.validation_step(
        batch.inputs, model=self.model, metrics=self.validation_metrics, **mask_argument(batch)
      )
      if self.task.loss in logs:
        add_loss(self._validation_loss, logs, self.task.loss, batch)
        add_terms(self._validation_terms, logs, batch)
    known = {LOSS_WEIGHT, *(term.name for term in self._validation_terms)}
    return {key: value for key, value in logs.items() if key not in known}

  # ---- Construction -------------------------------------------------------------------------------------------------

  def _init_evaluation(self, dataset: Any) -> None:
    self._is_rehearsal = False
    supplied = None if dataset is None else SuppliedFeed(dataset)
    task_config = self.config.task
    self._sets = build_sets(
      lambda path: supplied or self._feed_of(task_config.validation_data, path),
      {
        name: functools.partial(self._feed_of, settings)
        for name, settings in (getattr(task_config, "evaluation_sets", None) or {}).items()
      },
      self._options.validation_steps,
      continues=not self._options.recreate_iterator_for_each_eval,
    )
    with self._execution.eval_sums():
      self._validation_terms = build_term_means(self.task)
      self._validation_metrics = joint_metrics(
        self.task.build_metrics(training=False),
        self.model,
        self._validation_input.inputs_spec,
        [self._validation_loss, *self._validation_terms],
      )
    orbit.StandardEvaluator.__init__(
      self,
      self.eval_dataset,
      options=orbit.StandardEvaluatorOptions(
        use_tf_function=self._options.eval_tf_function,
        use_tf_while_loop=self._execution.evaluates_in_graph,
      ),
    )

  def _feed_of(self, settings: Any, path: str) -> Feed:
    return self._execution.validation_feed(
      self.task, settings, model=self.model, seed=self._seed, distribute=self.distribute_dataset, path=path
    )
