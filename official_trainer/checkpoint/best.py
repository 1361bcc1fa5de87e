"""Keeps the weights that scored best in evaluation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.atomic import remove_leftovers, write_text, writing
from official_trainer.checkpoint.state_file import read_state_file, write_state_file
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.config.trainer import comparison as resolved_comparison

_NAME = "best_ckpt"
_RECORD = "info.json"
_STEP_KEY = "best_ckpt_global_step"
_FILE_KEY = "best_ckpt_file"


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
  the previous best is deleted last. What an export that was cut off has left there is removed at the first evaluation.
  """

  def __init__(
    self,
    export_dir: str,
    metric_name: str,
    comparison: str | None = None,
    records: dict[str, dict[str, Any]] | None = None,
    key: str | None = None,
  ):
    """Stores the rule.

    Args:
      export_dir: folder of this rule, below model_dir.
      metric_name: name among the evaluation's logs; "a|b" for nested logs.
      comparison: "higher", "lower", or None to infer it from the name.
      records: key -> record of the best so far; a TrainState's `host.best`. None: this object keeps its own, read from
        `info.json`.
      key: where this rule's record is among `records`. None: the name of the folder.

    Raises:
      ValueError: if the comparison is none of the allowed words.
    """
    if comparison not in (None, "higher", "lower"):
      raise ValueError(f"best checkpoint comparison must be 'higher' or 'lower', got {comparison!r}.")
    self._export_dir = export_dir
    self._key = key or os.path.basename(os.path.normpath(export_dir))
    self._metric_name = metric_name
    self._comparison = resolved_comparison(metric_name, comparison)
    self._is_tidy = False
    self._records = {} if records is None else records
    if records is None and (record := read_record(export_dir)):
      self._records[self._key] = record

  @property
  def metric_name(self) -> str:
    return self._metric_name

  @property
  def comparison(self) -> str:
    return self._comparison

  @property
  def export_dir(self) -> str:
    return self._export_dir

  @property
  def best_ckpt_logs(self) -> dict[str, Any] | None:
    """The metrics of the best evaluation so far, or None."""
    return self._records.get(self._key)

  @property
  def best_value(self) -> float | None:
    logs = self.best_ckpt_logs
    return None if logs is None else lookup(logs, self._metric_name)

  @property
  def best_ckpt_path(self) -> str | None:
    return best_checkpoint_in(self._export_dir)

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
    value = lookup(eval_logs, self._metric_name)
    if value is None:
      raise KeyError(
        f"the metric {self._metric_name!r} of the best checkpoint is not reported."
        f" Reported: {', '.join(names_of(eval_logs))}."
      )
    self._tidy()
    if not is_better(value, self.best_value, self._comparison):
      return False
    if names := _non_finite_names(checkpoint.model):
      logging.warning(
        "%s = %s would be the best at step %d, but %d variables are not finite (%s): not exported.",
        self._metric_name, value, global_step, len(names), ", ".join(names[:5]),
      )  # fmt: skip
      return False
    # A step that is evaluated again, after a restart, replaces its own files, each by rename: the record may name them.
    prefix = os.path.join(self._export_dir, f"{_NAME}-{int(global_step)}")
    with writing(prefix):
      tf.io.gfile.makedirs(self._export_dir)
      tf.train.Checkpoint(model=checkpoint.model).write(prefix)
    record = {**_scalars(eval_logs), _STEP_KEY: int(global_step), _FILE_KEY: os.path.basename(prefix)}
    write_text(os.path.join(self._export_dir, _RECORD), json.dumps(record, indent=2, sort_keys=True) + "\n")
    self._records[self._key] = record
    write_state_file(self._export_dir, [os.path.basename(prefix)])
    self._remove_all_but(prefix)
    logging.info("New best %s = %s at step %d, exported to %s.", self._metric_name, value, global_step, prefix)
    return True

  def _tidy(self) -> None:
    """Removes, once, what another process did not finish to write."""
    if self._is_tidy or not tf.io.gfile.isdir(self._export_dir):
      return
    remove_leftovers(self._export_dir)
    if (best := self.best_ckpt_path) is not None:
      self._remove_all_but(best)
    self._is_tidy = True

  def _remove_all_but(self, prefix: str) -> None:
    keep = os.path.basename(prefix)
    for name in tf.io.gfile.listdir(self._export_dir):
      stem = name.rsplit(".", 1)[0]
      if stem.startswith(_NAME + "-") and stem != keep:
        path = os.path.join(self._export_dir, name)
        (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


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


def build_best_checkpoints(
  options: TrainerConfig, model_dir: str, records: dict[str, dict[str, Any]] | None = None
) -> BestCheckpoints | None:
  """Builds the rules of a trainer config: `best_checkpoint_*` and `best_checkpoints`. None if there are none."""
  rules = [
    BestCheckpoint(os.path.join(model_dir, rule.subdir), rule.eval_metric, rule.metric_comp, records, key=rule.subdir)
    for rule in _rules_of(options).values()
  ]
  return BestCheckpoints(rules) if rules else None


def best_metric_names(options: TrainerConfig) -> dict[str, str]:
  """Maps the config key of each rule to the metric it watches."""
  return {key: rule.eval_metric for key, rule in _rules_of(options).items()}


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


def read_record(export_dir: str) -> dict[str, Any] | None:
  """Reads the record of a best-checkpoint folder; None if there is none or it cannot be read."""
  path = os.path.join(export_dir, _RECORD)
  if not tf.io.gfile.exists(path):
    return None
  try:
    with tf.io.gfile.GFile(path) as file:
      return dict(json.loads(file.read()))
  except (ValueError, TypeError, tf.errors.OpError) as error:
    logging.warning("The record %s cannot be read (%s); the next finite value becomes the best.", path, error)
    return None


def best_checkpoint_in(export_dir: str) -> str | None:
  """Returns the prefix of the exported weights that the record names, else the newest one, else None."""
  record = read_record(export_dir)
  if record and _FILE_KEY in record:
    return os.path.join(export_dir, record[_FILE_KEY])
  return read_state_file(export_dir)


def step_of(export_dir: str) -> int | None:
  """Returns the step at which the best weights were evaluated, from the record."""
  record = read_record(export_dir)
  return int(record[_STEP_KEY]) if record and _STEP_KEY in record else None


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
