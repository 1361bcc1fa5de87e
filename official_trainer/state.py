"""Everything a run must not forget, in one object and one checkpoint (foundation F3)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.data.anchor import Anchor
from official_trainer.format_version import upgraded
from official_trainer.history import History
from official_trainer.optim.ema import Ema, NoEma

_HOST_FORMAT = 2
# Version 1 was also written before there was a limit of wall time.
_HOST_UPGRADES = {1: lambda values: {"spent_secs": None, **values}}


class HostState:
  """The Python side of a run's state: plain values, stored as JSON in a string variable of the checkpoint.

  Attributes:
    history: every reported row.
    best: export folder -> record of the best checkpoint so far.
    last_eval_step: the step of the newest complete evaluation, -1 before the first.
    anchor: the input's anchor as `data.indexed.Anchor.to_json` gives it, or None.
    window: the training metrics' accumulators in the middle of a report window, or None at its border.
    spent_secs: the wall-clock budget that ended the run, None while none did.
    extras: name -> JSON value, for actions of users that need to survive a restart.
    finished: why the run is done before its last step, None while it is not. Not saved: each start decides it anew.
  """

  def __init__(self) -> None:
    self.history = History()
    self.best: dict[str, dict[str, Any]] = {}
    self.last_eval_step = -1
    self.anchor: dict[str, int] | None = None
    self.window: dict[str, Any] | None = None
    self.spent_secs: float | None = None
    self.extras: dict[str, Any] = {}
    self.finished: str | None = None

  def dumps(self) -> str:
    return json.dumps(
      {
        "format_version": _HOST_FORMAT,
        "history": self.history.to_json(),
        "best": self.best,
        "last_eval_step": self.last_eval_step,
        "anchor": self.anchor,
        "window": self.window,
        "spent_secs": self.spent_secs,
        "extras": self.extras,
      },
      sort_keys=True,
    )

  def loads(self, text: str) -> None:
    """Takes over the values of `text`; `best` and `extras` keep their identity, since others hold on to them.

    Raises:
      ValueError: if a newer version of this library wrote the text.
    """
    values = upgraded(json.loads(text), _HOST_FORMAT, _HOST_UPGRADES, "the checkpoint's host state")
    self.history = History.from_json(values["history"])
    _replace(self.best, values["best"])
    self.last_eval_step = values["last_eval_step"]
    self.anchor = values["anchor"]
    self.window = values["window"]
    self.spent_secs = values["spent_secs"]
    self.finished = None
    _replace(self.extras, values["extras"])

  def clear(self) -> None:
    """Forgets everything: what a checkpoint without host state leaves behind."""
    self.history = History()
    self.best.clear()
    self.last_eval_step, self.anchor, self.window = -1, None, None
    self.spent_secs = self.finished = None
    self.extras.clear()


class TrainState:
  """Model, optimizer, averages, step and host state of one run."""

  def __init__(
    self,
    *,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer | None,
    ema: Ema | NoEma,
    global_step: tf.Variable,
    checkpoint_items: Mapping[str, Any] | None = None,
    own_optimizers: Mapping[str, Any] | None = None,
  ):
    """Joins the parts; call under the strategy's scope.

    Args:
      model: a built model.
      optimizer: its optimizer with slots built, or None for evaluation only.
      ema: averages, or the null object.
      global_step: int64 scalar variable, number of completed updates.
      checkpoint_items: further objects to save, by root name (a model's `checkpoint_items`).
      own_optimizers: the optimizers that parameter groups have of their own, by group.
    """
    self.model = model
    self.optimizer = optimizer
    self.own_optimizers = dict(own_optimizers or {})
    self.ema = ema
    self.global_step = global_step
    self.host = HostState()
    self._packed = _host_variable("", "host_state")
    roots = {"global_step": global_step, "model": model, "host": self._packed}
    if ema.averages:
      roots["ema"] = ema.averages
    if optimizer is not None:
      roots["optimizer"] = optimizer
    if self.own_optimizers:
      roots["group_optimizers"] = self.own_optimizers
    self.checkpoint = tf.train.Checkpoint(**{**(checkpoint_items or {}), **roots})

  @property
  def step(self) -> int:
    """Number of completed updates."""
    return int(self.global_step.numpy())

  def anchor(self, global_batch_size: int, batch: int) -> Anchor:
    """Returns the anchor of the input's position, moved to `batch`, the next one, if its size was another before."""
    if self.host.anchor is None:
      anchor = Anchor.start(global_batch_size)
    else:
      anchor = Anchor.from_json(self.host.anchor)
      if anchor.global_batch_size != global_batch_size:
        anchor = anchor.moved(batch, global_batch_size)
    self.host.anchor = anchor.to_json()
    return anchor

  @contextlib.contextmanager
  def packed(self) -> Iterator[tf.train.Checkpoint]:
    """Gives the checkpoint with the host state packed in and the raw weights in place: ready to be written."""
    with self.ema.swapped_out():
      self._packed.assign(self.host.dumps())
      yield self.checkpoint

  def unpack(self) -> None:
    """Takes over the host state that a restore brought in."""
    text = self._packed.numpy().decode()
    if text:
      self.host.loads(text)
    else:
      self.host.clear()

  def variables(self) -> list[tf.Variable]:
    """Lists weights, averages and slots."""
    return [*self.model.variables, *self.ema.averages, *self.slots()]

  def slots(self) -> list[tf.Variable]:
    """Lists the optimizers' variables, those of parameter groups after the one of all."""
    optimizers = (self.optimizer, *self.own_optimizers.values())
    return [variable for optimizer in optimizers for variable in variables_of(optimizer)]

  def finite_variables(self) -> list[tf.Variable]:
    """Lists the variables that must be finite in every checkpoint: weights, averages and slots."""
    return [v for v in self.variables() if v.dtype.is_floating]


def _host_variable(value: str, name: str) -> tf.Variable:
  """Makes a variable that lives on this host alone: strategies cannot send strings from one process to another."""

  def make() -> tf.Variable:
    with tf.device("CPU:0"):
      return tf.Variable(value, dtype=tf.string, trainable=False, name=name)

  # The strategy in scope, which replicates what is made under it, is a matter of this thread.
  with concurrent.futures.ThreadPoolExecutor(max_workers=1) as outside:
    return outside.submit(make).result()


def variables_of(optimizer: tf_keras.optimizers.Optimizer | None) -> list[tf.Variable]:
  """Returns the variables of an optimizer of either API; none of none."""
  if optimizer is None:
    return []
  # A method in tf-keras's legacy optimizers, a property in the new ones.
  variables = optimizer.variables
  return list(variables() if callable(variables) else variables)


def _replace(target: dict[str, Any], values: Mapping[str, Any]) -> None:
  target.clear()
  target.update(values)
