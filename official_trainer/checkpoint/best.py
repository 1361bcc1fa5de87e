"""Keeps the weights that scored best in evaluation."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.checkpoint.best_folder import FILE_KEY, STEP_KEY, BestFolder, Record, best_checkpoint_in
from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.config.trainer import comparison as resolved_comparison


def is_better(new: float, old: float | None, comparison: str) -> bool:
  """Says whether `new` replaces `old`. A value that is not finite never does, and is always replaced.

  Args:
    new: value of the newest evaluation.
    old: value of the best so far, or None.
    comparison: "higher" or "lower".
  """
  if not math.isfinite(new):
    return False
  if old is None or not math.isfinite(old):
    return True
  return new > old if comparison == "higher" else new < old


def lookup(logs: Mapping[str, Any], metric_name: str) -> float | None:
  """Finds a metric by name in possibly nested logs, levels joined by "|". None if it is not there or not a scalar."""
  node: Any = logs.get(metric_name)
  if node is None:
    node = logs
    for key in metric_name.split("|"):
      if not isinstance(node, Mapping) or key not in node:
        return None
      node = node[key]
  try:
    return float(node)
  except (TypeError, ValueError):
    return None


class BestCheckpoint:
  """One rule "the best by this metric", with its folder.

  The folder holds a model-only checkpoint (`tf.train.Checkpoint(model=...)`), with the weights as they were evaluated,
  and `info.json` with the metrics of that evaluation. The weights are written first, the record second by rename, and
  the previous best is deleted last: not before a checkpoint was committed whose state knows the new one, since a run
  that goes back to the checkpoint before goes back to the previous best, too.

  A run that was killed after an export and goes on from before it finds a record that is ahead of its state. The record
  stays while it is the better one, so that the folder never gets worse, until the run comes to that step: then it was
  repeated, or it belongs to a course that the run did not take again, and the state's own best takes its place.
  """

  def __init__(
    self,
    export_dir: str,
    metric_name: str,
    comparison: str | None = None,
    records: dict[str, Record] | None = None,
    key: str | None = None,
    committed_step: Callable[[], int] | None = None,
  ):
    """Stores the rule.

    Args:
      export_dir: folder of this rule, below model_dir.
      metric_name: name among the evaluation's logs; "a|b" for nested logs.
      comparison: "higher", "lower", or None to infer it from the name.
      records: key -> record of the best so far; a TrainState's `host.best`. None: this object keeps its own, read from
        `info.json`.
      key: where this rule's record is among `records`. None: the name of the folder.
      committed_step: returns the step of the newest checkpoint. None: nobody goes back, the previous best is deleted at
        once.

    Raises:
      ValueError: if the comparison is none of the allowed words.
    """
    if comparison not in (None, "higher", "lower"):
      raise ValueError(f"best checkpoint comparison must be 'higher' or 'lower', got {comparison!r}.")
    self._folder = BestFolder(export_dir)
    self._key = key or os.path.basename(os.path.normpath(export_dir))
    self._metric_name = metric_name
    self._comparison = resolved_comparison(metric_name, comparison)
    self._committed_step = committed_step
    self._replaced: list[tuple[str, int]] = []  # File of a former best, and the step at which it was replaced.
    self._records = {} if records is None else records
    if records is None and (record := self._folder.record):
      self._records[self._key] = record

  @property
  def metric_name(self) -> str:
    return self._metric_name

  @property
  def comparison(self) -> str:
    return self._comparison

  @property
  def export_dir(self) -> str:
    return self._folder.path

  @property
  def best_ckpt_logs(self) -> Record | None:
    """The metrics of the best evaluation so far, or None."""
    return self._records.get(self._key)

  @property
  def best_value(self) -> float | None:
    logs = self.best_ckpt_logs
    return None if logs is None else lookup(logs, self._metric_name)

  @property
  def best_ckpt_path(self) -> str | None:
    return best_checkpoint_in(self._folder.path)

  def maybe_export_checkpoint(
    self, checkpoint: tf.train.Checkpoint, eval_logs: Mapping[str, Any], global_step: int
  ) -> bool:
    """Exports the weights now in place if they score better than the best so far.

    Args:
      checkpoint: a checkpoint whose `model`, a tf.Module, is exported. Weights that are not finite never are, whatever
        the metric says.
      eval_logs: metrics of this evaluation, possibly nested; scalars are recorded, the rest is left out.
      global_step: number of completed updates.

    Returns:
      Whether it was exported.

    Raises:
      KeyError: if the metric is not among the logs.
      NotWritten: if the file system refuses. The best so far then stays what it was.
    """
    step = int(global_step)
    value = lookup(eval_logs, self._metric_name)
    if value is None:
      raise KeyError(
        f"the metric {self._metric_name!r} of the best checkpoint is not reported."
        f" Reported: {', '.join(names_of(eval_logs))}."
      )
    is_new = is_better(value, self.best_value, self._comparison)
    if is_new and (names := _non_finite_names(checkpoint.model)):
      logging.warning(
        "%s = %s would be the best at step %d, but %d variables are not finite (%s): not exported.",
        self._metric_name, value, step, len(names), ", ".join(names[:5]),
      )  # fmt: skip
      is_new = False
    if is_new:
      self._export(checkpoint.model, eval_logs, step)
    self._settle(step)
    self._remove(final=self._committed_step is None)
    return is_new

  def finish(self) -> None:
    """Leaves nothing in the folder but the best. Call at the end of a run."""
    self._remove(final=True)

  def _export(self, model: tf.Module, eval_logs: Mapping[str, Any], step: int) -> None:
    before = self.best_ckpt_logs
    record = {**_scalars(eval_logs), STEP_KEY: step}
    file = self._folder.file_for(record)
    self._folder.write_weights(model, file)
    record[FILE_KEY] = file
    if not self._is_ahead(self._folder.record, record):
      self._folder.write_record(record)
    self._records[self._key] = record
    if before is not None:
      self._replaced.append((before[FILE_KEY], step))
    logging.info("New best %s = %s at step %d, exported to %s.", self._metric_name, self.best_value, step, file)

  def _is_ahead(self, found: Record | None, record: Record) -> bool:
    """Says whether the record on disk is of a later step than `record`, and better."""
    if found is None or found.get(STEP_KEY, -1) <= record[STEP_KEY] or not self._folder.holds(found.get(FILE_KEY, "")):
      return False
    value = lookup(found, self._metric_name)
    return value is not None and is_better(value, lookup(record, self._metric_name), self._comparison)

  def _settle(self, step: int) -> None:
    """Puts the state's best in the place of a record that was ahead, once its step has come and it was not repeated."""
    mine, found = self.best_ckpt_logs, self._folder.record
    if mine is None or found is None or found == mine or found.get(STEP_KEY, -1) > step:
      return
    if self._folder.holds(mine[FILE_KEY]):
      self._folder.write_record(mine)

  def _remove(self, *, final: bool) -> None:
    """Removes weights that nobody can go back to."""
    found, mine = self._folder.record, self.best_ckpt_logs
    if not final and self._committed_step is not None:
      committed = self._committed_step()
      self._replaced = [(file, step) for file, step in self._replaced if committed <= step]
    kept = {record[FILE_KEY] for record in (found, None if final else mine) if record and FILE_KEY in record}
    if kept:
      self._folder.keep(kept if final else kept | {file for file, _ in self._replaced})


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
      os.path.join(model_dir, rule.subdir), rule.eval_metric, rule.metric_comp, records, rule.subdir, committed
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
    )
  for index, rule in enumerate(options.best_checkpoints):
    rules[f"trainer.best_checkpoints.{index}.eval_metric"] = rule
  return rules


def names_of(logs: Mapping[str, Any], prefix: str = "") -> list[str]:
  """Lists the names in possibly nested logs, levels joined by "|"."""
  names: list[str] = []
  for key, value in logs.items():
    names += names_of(value, f"{prefix}{key}|") if isinstance(value, Mapping) else [f"{prefix}{key}"]
  return names


def _scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
  kept: dict[str, Any] = {}
  for key, value in logs.items():
    if isinstance(value, Mapping):
      kept[key] = _scalars(value)
    elif (number := lookup(logs, key)) is not None:
      kept[key] = number
  return kept


def _non_finite_names(model: tf.Module) -> list[str]:
  return [
    v.name.split(":")[0]
    for v in model.variables
    if v.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(v.read_value()))
  ]
