"""The rules of a trainer config, looked after together."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_trainer.checkpoint.best import BestCheckpoint
from official_trainer.checkpoint.best_folder import Record
from official_trainer.checkpoint.config import BestCheckpointConfig
from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.checkpoint.nested_logs import lookup
from official_trainer.config.trainer import TrainerConfig


class BestCheckpoints:
  """Several rules that are looked after together, each with its folder."""

  def __init__(self, rules: Sequence[BestCheckpoint]):
    self._rules = tuple(rules)

  def __iter__(self) -> Iterator[BestCheckpoint]:
    return iter(self._rules)

  @property
  def best_ckpt_logs(self) -> dict[str, float]:
    """Metric name -> best value so far, for the rules that have one."""
    return {rule.metric_name: rule.best_value for rule in self._rules if rule.best_value is not None}

  def maybe_export_checkpoint(
    self, checkpoint: tf.train.Checkpoint, eval_logs: Mapping[str, Any], global_step: int
  ) -> bool:
    """Lets every rule decide. Returns whether any exported."""
    exported = [rule.maybe_export_checkpoint(checkpoint, eval_logs, global_step) for rule in self._rules]
    return any(exported)

  def finish(self) -> None:
    """Leaves nothing in the folders but the best. Call at the end of a run."""
    for rule in self._rules:
      rule.finish()


def build_best_checkpoints(
  options: TrainerConfig, model_dir: str, records: dict[str, Record] | None = None
) -> BestCheckpoints | None:
  """Builds the rules of a trainer config: `best_checkpoint_*` and `best_checkpoints`. None if there are none.

  Args:
    options: the trainer config.
    model_dir: the run's folder.
    records: a TrainState's `host.best`; None for a process that only evaluates.
  """
  committed = None if records is None else functools.partial(_newest_step, model_dir)
  rules = [
    BestCheckpoint(
      os.path.join(model_dir, rule.subdir),
      rule.eval_metric,
      rule.metric_comp,
      records,
      rule.subdir,
      committed,
      top_k=rule.top_k,
      min_gain=rule.min_gain,
      ties=rule.ties,
    )
    for rule in _rules_of(options).values()
  ]
  return BestCheckpoints(rules) if rules else None


def _newest_step(model_dir: str) -> int:
  return max(committed_steps(model_dir), default=-1)


def best_metric_names(options: TrainerConfig) -> dict[str, str]:
  """Maps the config key of each rule to the metric it watches."""
  return {key: rule.eval_metric for key, rule in _rules_of(options).items()}


def best_so_far(options: TrainerConfig, best: Mapping[str, Any]) -> dict[str, float]:
  """Returns "best_<metric>" -> value for each rule of the config that has one among the logs of the best."""
  values = {name: lookup(best, name) for name in best_metric_names(options).values()}
  return {f"best_{name}": value for name, value in values.items() if value is not None}


def _rules_of(options: TrainerConfig) -> dict[str, BestCheckpointConfig]:
  """Maps the key that names a rule's metric to the rule."""
  rules = {}
  if options.best_checkpoint_export_subdir and options.best_checkpoint_eval_metric:
    rules["trainer.best_checkpoint_eval_metric"] = BestCheckpointConfig(
      subdir=options.best_checkpoint_export_subdir,
      eval_metric=options.best_checkpoint_eval_metric,
      metric_comp=options.best_checkpoint_metric_comp,
      top_k=options.best_checkpoint_top_k,
      min_gain=options.best_checkpoint_min_gain,
      ties=options.best_checkpoint_ties,
    )
  for index, rule in enumerate(options.best_checkpoints):
    rules[f"trainer.best_checkpoints.{index}.eval_metric"] = rule
  return rules
