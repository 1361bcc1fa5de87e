"""Keeps the weights that scored best in evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.checkpoint.best_folder import (
  FILE_KEY,
  STEP_KEY,
  BestFolder,
  Record,
  best_checkpoint_in,
  packed,
  unpacked,
)
from official_trainer.checkpoint.config import Ties
from official_trainer.checkpoint.nested_logs import lookup, names_of, scalars_in
from official_trainer.checkpoint.ranking import Ranking
from official_trainer.config.comparison import comparison as resolved_comparison


class BestCheckpoint:
  """One rule "the best by this metric", with its folder.

  The folder holds one or several model-only checkpoints (`tf.train.Checkpoint(model=...)`), with the weights as they
  were evaluated, and `info.json` with the metrics of the best evaluation, and the ranking where several are kept. The
  weights are written first, the record second by rename, and weights that it no longer names are deleted last: not
  before a checkpoint was committed whose state knows the new record, since a run that goes back to the checkpoint
  before goes back to the previous record, too.

  A run that was killed after an export and goes on from before it finds a record that is ahead of its state. What the
  record has of later steps stays in it while it is good enough, so that the folder never gets worse, until the run
  comes to those steps: then they were repeated, or they belong to a course that the run did not take again, and the
  state's own ranking takes their place.
  """

  def __init__(
    self,
    export_dir: str,
    metric_name: str,
    comparison: str | None = None,
    records: dict[str, Record] | None = None,
    key: str | None = None,
    committed_step: Callable[[], int] | None = None,
    *,
    top_k: int = 1,
    min_gain: float = 0.0,
    ties: Ties = "first",
  ):
    """Stores the rule.

    Args:
      export_dir: folder of this rule, below model_dir.
      metric_name: name among the evaluation's logs; "a|b" for nested logs.
      comparison: "higher", "lower", or None to infer it from the name.
      records: key -> record of the best so far; a TrainState's `host.best`. None: this object keeps its own, read from
        `info.json`.
      key: where this rule's record is among `records`. None: the name of the folder.
      committed_step: returns the step of the newest checkpoint. None: nobody goes back, weights that are no longer
        among the best are deleted at once.
      top_k: how many of the best are kept.
      min_gain: by how much a value must be better than the one whose place it takes.
      ties: whether the first or the last of equal values ranks higher.

    Raises:
      ValueError: if the comparison is none of the allowed words.
    """
    if comparison not in (None, "higher", "lower"):
      raise ValueError(f"best checkpoint comparison must be 'higher' or 'lower', got {comparison!r}.")
    self._folder = BestFolder(export_dir)
    self._key = key or os.path.basename(os.path.normpath(export_dir))
    self._ranking = Ranking(
      metric_name=metric_name,
      comparison=resolved_comparison(metric_name, comparison),
      top_k=top_k,
      min_gain=min_gain,
      ties=ties,
    )
    self._committed_step = committed_step
    self._replaced: list[tuple[str, int]] = []  # File that was among the best, and the step at which it fell out.
    self._records = {} if records is None else records
    if records is None and (record := self._folder.record):
      self._records[self._key] = record

  @property
  def metric_name(self) -> str:
    return self._ranking.metric_name

  @property
  def comparison(self) -> str:
    return self._ranking.comparison

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
    return None if logs is None else self._ranking.value(logs)

  @property
  def ranked(self) -> list[Record]:
    """The records of what is kept, best first."""
    return unpacked(self.best_ckpt_logs)

  @property
  def best_ckpt_path(self) -> str | None:
    return best_checkpoint_in(self._folder.path)

  def maybe_export_checkpoint(
    self, checkpoint: tf.train.Checkpoint, eval_logs: Mapping[str, Any], global_step: int
  ) -> bool:
    """Exports the weights now in place if they score well enough to be kept.

    Args:
      checkpoint: a checkpoint whose `model`, a tf.Module, is exported. Weights that are not finite never are, whatever
        the metric says.
      eval_logs: metrics of this evaluation, possibly nested; scalars are recorded, the rest is left out.
      global_step: number of completed updates.

    Returns:
      Whether it was exported.

    Raises:
      KeyError: if the metric is not among the logs.
      NotWritten: if the file system refuses. What was kept so far then stays what it was.
    """
    step = int(global_step)
    value = lookup(eval_logs, self.metric_name)
    if value is None:
      raise KeyError(
        f"the metric {self.metric_name!r} of the best checkpoint is not reported."
        f" Reported: {', '.join(names_of(eval_logs))}."
      )
    candidate = {**scalars_in(eval_logs), STEP_KEY: step}
    ranked = self._ranking.with_candidate(self.ranked, candidate)
    if ranked is not None and (names := _non_finite_names(checkpoint.model)):
      logging.warning(
        "%s = %s would be among the best at step %d, but %d variables are not finite (%s): not exported.",
        self.metric_name, value, step, len(names), ", ".join(names[:5]),
      )  # fmt: skip
      ranked = None
    if ranked is None:
      self._show(self.ranked, step)
    else:
      self._export(checkpoint.model, candidate, ranked)
    self._remove(final=self._committed_step is None)
    return ranked is not None

  def finish(self) -> None:
    """Leaves nothing in the folder but what its record names. Call at the end of a run."""
    self._remove(final=True)

  def _export(self, model: tf.Module, candidate: Record, ranked: list[Record]) -> None:
    """Writes the weights, names them in `candidate`, which is one of `ranked`, and makes that the ranking."""
    before, step = self.ranked, candidate[STEP_KEY]
    candidate[FILE_KEY] = self._folder.file_for(candidate, [*before, *unpacked(self._folder.record)])
    self._folder.write_weights(model, candidate[FILE_KEY])
    self._show(ranked, step)
    self._records[self._key] = packed(ranked, self._ranking.top_k)
    stays = _files(ranked)
    self._replaced += [(file, step) for file in _files(before) if file not in stays]
    logging.info(
      "%s = %s at step %d is number %d of the best, exported to %s.",
      self.metric_name, self._ranking.value(candidate), step, ranked.index(candidate) + 1, candidate[FILE_KEY],
    )  # fmt: skip

  def _show(self, ranked: Sequence[Record], step: int) -> None:
    """Makes the record on disk that of `ranked`, with what it has of steps after `step` and would be among the best."""
    found = self._folder.record
    ahead = [record for record in unpacked(found) if record.get(STEP_KEY, -1) > step]
    wanted = self._ranking.with_later(ranked, ahead)
    if not wanted or packed(wanted, self._ranking.top_k) == found:
      return
    ahead = [record for record in ahead if self._is_there(record)]
    there = [record for record in self._ranking.with_later(ranked, ahead) if self._is_there(record)]
    if there and packed(there, self._ranking.top_k) != found:
      self._folder.write_record(packed(there, self._ranking.top_k))

  def _is_there(self, record: Record) -> bool:
    return self._folder.holds(record.get(FILE_KEY, ""))

  def _remove(self, *, final: bool) -> None:
    """Removes weights that nobody can go back to."""
    if not final and self._committed_step is not None:
      committed = self._committed_step()
      self._replaced = [(file, step) for file, step in self._replaced if committed <= step]
    kept = set(_files([*unpacked(self._folder.record), *([] if final else self.ranked)]))
    if kept:
      self._folder.keep(kept if final else kept | {file for file, _ in self._replaced})


def _files(records: Collection[Record]) -> list[str]:
  return [record[FILE_KEY] for record in records if FILE_KEY in record]


def _non_finite_names(model: tf.Module) -> list[str]:
  return [
    v.name.split(":")[0]
    for v in model.variables
    if v.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(v.read_value()))
  ]
