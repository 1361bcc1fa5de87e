"""One training step again: `--mode=replay --replay_step=N`.

The state comes from the newest checkpoint before the step, the batches from the step: so what is computed is what the
run computed. Nothing is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.actions.event import scalars_of
from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.restoring import restore_exactly
from official_trainer.crash import CrashBundle
from official_trainer.errors import ConfigError, first_of
from official_trainer.run_record import Recovery, load_record
from official_trainer.trainer import Trainer
from official_trainer.user_code import user_place

_OP = re.compile(r'op "(\w+)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
  """What one update did.

  Attributes:
    step: completed updates after it.
    batch: number of the batch in the stream.
    restored: the step of the checkpoint that it was computed from.
    metrics: losses, metrics and learning rate of this update alone.
    norms: L2 norms: of the gradients (summed over replicas), of the weights before and after, of the update.
    bad_inputs: input tensors that are not finite, with the rows of the batch.
    bad_gradients: trainable variables whose gradient is not finite.
    bad_variables: variables of the state that are not finite after the update.
    first: the first operation whose result was not finite, and where it was called; None if all were.
  """

  step: int
  batch: int
  restored: int
  metrics: dict[str, float]
  norms: dict[str, float]
  bad_inputs: tuple[str, ...] = ()
  bad_gradients: tuple[str, ...] = ()
  bad_variables: tuple[str, ...] = ()
  first: str | None = None

  @property
  def is_finite(self) -> bool:
    values = [*self.metrics.values(), *self.norms.values()]
    return bool(np.all(np.isfinite(values))) and not (self.bad_inputs or self.bad_gradients or self.bad_variables)

  def __str__(self) -> str:
    lines = [f"step {self.step}: batch {self.batch}, computed from the checkpoint of step {self.restored}"]
    lines += [f"  {name}: {value:.9g}" for name, value in sorted(self.metrics.items())]
    lines += [f"  norm of {name}: {value:.9g}" for name, value in self.norms.items()]
    for title, names in (
      ("inputs that are not finite", self.bad_inputs),
      ("gradients that are not finite", self.bad_gradients),
      ("variables that are not finite after it", self.bad_variables),
    ):
      if names:
        lines.append(f"  {title} ({len(names)}): {first_of(names)}")
    lines.append(f"  first operation that is not finite: {self.first or 'none'}")
    return "\n".join(lines)


class Replay:
  """Computes steps of a run again, in a process of its own."""

  def __init__(
    self,
    trainer: Trainer,
    model_dir: str,
    *,
    non_finite_names: Callable[[], list[str]],
    learning_rate_factor: float,
    bundle: CrashBundle | None,
  ):
    """Stores its arguments.

    Args:
      trainer: built for training, with the run's config.
      model_dir: the run's folder.
      non_finite_names: returns the names of variables that hold NaN or infinity.
      learning_rate_factor: `trainer.recovery_learning_rate_factor`.
      bundle: of the crash that is looked into, if there was one.
    """
    self._trainer = trainer
    self._model_dir = model_dir
    self._non_finite_names = non_finite_names
    self._learning_rate_factor = learning_rate_factor
    self._bundle = bundle
    self._recoveries: tuple[Recovery, ...] = ()

  def run(self, step: int | None) -> StepReport:
    """Returns what the update to `step` did; without a step, the first bad one of the crash, else its last.

    Call under the strategy's scope.

    Raises:
      ConfigError: if there is nothing to replay, no checkpoint before it, or an input without position.
    """
    first, last = self._steps(step)
    if not self._trainer.train_input.exact:
      raise ConfigError.of("task.train_data", f"cannot be replayed: {self._trainer.train_input.position}.")
    restored = self._restore(first - 1)
    self._train_to(first - 1)
    for number in range(first, last + 1):
      self._set_rate()
      before = self._snapshot()
      report = self._update(number, restored)
      if not report.is_finite or number == last:
        break
    return self._explained(report, before)

  def _steps(self, step: int | None) -> tuple[int, int]:
    if step is not None:
      if step < 1:
        raise ConfigError.of("--replay_step", f"must be at least 1, the first update; got {step}.")
      return step, step
    if self._bundle is None:
      raise ConfigError.of("--replay_step", f"must be given: {self._model_dir} holds no crash bundle to take it from.")
    last = max(1, self._bundle.step)
    return min(last, (self._bundle.start if self._bundle.start is not None else last - 1) + 1), last

  def _restore(self, step: int) -> int:
    """Restores the newest checkpoint that is not after `step`, and what was left out at that time."""
    committed = manifest.committed_steps(self._model_dir)
    steps = [found for found in committed if found <= step]
    if not steps:
      there = f"Those that are there: {', '.join(map(str, committed))}." if committed else "It holds none at all."
      raise ConfigError.of("--model_dir", f"{self._model_dir} holds no checkpoint at step {step} or before. {there}")
    prefix = manifest.checkpoint_prefix(self._model_dir, steps[-1])
    manifest.verify(prefix)
    restore_exactly(self._trainer.state.checkpoint, prefix)
    self._trainer.state.unpack()
    record = load_record(self._model_dir)
    recoveries = record.recoveries if record else ()
    windows = [recovery.window for recovery in recoveries]
    if self._bundle is not None and (self._bundle.start or 0) <= step < self._bundle.step:
      windows = list(self._bundle.skipped)
      recoveries = [recovery for recovery in recoveries if _is_within(recovery.window, windows)]
    self._trainer.leave_out(windows)
    self._recoveries = tuple(recoveries)
    return steps[-1]

  def _train_to(self, step: int) -> None:
    """Trains up to `step`, each update with the learning rate that it had."""
    starts = {recovery.back_to or 0 for recovery in self._recoveries}
    for goal in sorted({*starts, step}):
      self._set_rate()
      missing = min(goal, step) - self._trainer.state.step
      if missing > 0:
        self._trainer.train(tf.constant(missing, tf.int32))

  def _set_rate(self) -> None:
    """Sets the learning rate of the next update: lowered by those recoveries that went back to before it."""
    if self._learning_rate_factor < 1:
      step = self._trainer.state.step
      lowered = sum((recovery.back_to or 0) <= step for recovery in self._recoveries)
      self._trainer.hyperparameters.scale(self._learning_rate_factor**lowered)

  def _update(self, step: int, restored: int) -> StepReport:
    """Does the update as the run did it, compiled, and measures it."""
    trainer = self._trainer
    batch = trainer.skipped_batches.batch_of(step - 1)
    weights = [v.numpy() for v in trainer.model.trainable_variables]
    trainer.keep_window(False)
    metrics = scalars_of(trainer.train(tf.constant(1, tf.int32)) or {})
    after = [v.numpy() for v in trainer.model.trainable_variables]
    return StepReport(
      step=step,
      batch=batch,
      restored=restored,
      metrics=metrics,
      norms={
        "the weights before": _norm(weights),
        "the weights after": _norm(after),
        "the update": _norm([new - old for new, old in zip(after, weights, strict=True)]),
      },
      bad_variables=tuple(self._non_finite_names()),
    )

  def _explained(self, report: StepReport, before: list[np.ndarray]) -> StepReport:
    """Does the same update once more, operation by operation, for what a compiled step does not show."""
    trainer = self._trainer

    def batches() -> Any:
      return iter(trainer.train_input.dataset(report.step - 1))

    self._put_back(before)
    gradients = _Gradients(trainer.optimizer)
    with _eagerly():
      batch = trainer.train_input.to_replicas(trainer.next_train_inputs(batches())).inputs
      bad_inputs = tuple(_bad_inputs(trainer.strategy, batch))
      with gradients:
        trainer.train_step(batches())
      first = "none, the inputs were not" if bad_inputs else None
      if not bad_inputs and (not report.is_finite or gradients.bad):
        self._put_back(before)
        first = _first_non_finite(lambda: trainer.train_step(batches()))
    return dataclasses.replace(
      report,
      norms={"the gradients": gradients.norm, **report.norms},
      bad_inputs=bad_inputs,
      bad_gradients=tuple(gradients.bad),
      first=first,
    )

  def _snapshot(self) -> list[np.ndarray]:
    return [local.numpy() for local in self._locals()]

  def _put_back(self, values: Sequence[np.ndarray]) -> None:
    for local, value in zip(self._locals(), values, strict=True):
      local.assign(value)

  def _locals(self) -> Iterator[tf.Variable]:
    state = self._trainer.state
    for variable in [*state.variables(), state.global_step]:
      yield from self._trainer.strategy.experimental_local_results(variable)


class _Gradients:
  """Sees the gradients that an optimizer is given, in eager steps."""

  def __init__(self, optimizer: Any):
    self._optimizer = optimizer
    self._sums: dict[str, np.ndarray] = {}

  @property
  def norm(self) -> float:
    return _norm(list(self._sums.values()))

  @property
  def bad(self) -> list[str]:
    return [name for name, value in self._sums.items() if not np.all(np.isfinite(value))]

  def __enter__(self) -> None:
    apply = self._optimizer.apply_gradients

    def seen(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
      pairs = list(grads_and_vars)
      for gradient, variable in pairs:
        if gradient is not None:
          name = variable.name.split(":")[0]
          value = tf.convert_to_tensor(gradient).numpy()
          self._sums[name] = value + self._sums.get(name, 0.0)  # Replica after replica.
      return apply(pairs, *args, **kwargs)

    self._apply = apply
    self._optimizer.apply_gradients = seen

  def __exit__(self, *exc: object) -> None:
    self._optimizer.apply_gradients = self._apply


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
  """Runs functions line by line, without TensorFlow's advice not to."""
  before, level = tf.config.functions_run_eagerly(), tf.get_logger().level
  tf.get_logger().setLevel("ERROR")
  tf.config.run_functions_eagerly(True)
  try:
    with warnings.catch_warnings():
      warnings.filterwarnings("ignore", message=".*does not apply to tf.data functions")
      yield
  finally:
    tf.config.run_functions_eagerly(before)
    tf.get_logger().setLevel(level)


def _first_non_finite(step: Callable[[], None]) -> str | None:
  """Runs an eager step and names the first operation whose result is not finite, and the line that called it."""
  tf.debugging.enable_check_numerics()
  try:
    step()
  except tf.errors.InvalidArgumentError as error:
    match = _OP.search(str(error))
    place = user_place(traceback.extract_tb(error.__traceback__))
    where = f" at {place}" if place else ""
    return f"{match.group(1) if match else 'an operation'}{where}"
  finally:
    tf.debugging.disable_check_numerics()
  return None


def _bad_inputs(strategy: tf.distribute.Strategy, batch: Any) -> Iterator[str]:
  for index, leaf in enumerate(tf.nest.flatten(batch)):
    rows: list[int] = []
    offset = 0
    for local in strategy.experimental_local_results(leaf):
      if local is None or not local.dtype.is_floating or not local.shape.rank:
        continue
      values = local.numpy().reshape(local.shape[0], -1)
      rows += [offset + int(row) for row in np.flatnonzero(~np.isfinite(values).all(axis=1))]
      offset += local.shape[0]
    if rows:
      yield f"tensor {index} of the batch in row{'s' if len(rows) > 1 else ''} {first_of(rows)}"


def _is_within(window: tuple[int, int], windows: Sequence[tuple[int, int]]) -> bool:
  return any(first <= window[0] and window[1] <= end for first, end in windows)


def _norm(values: Sequence[np.ndarray]) -> float:
  return float(np.sqrt(sum(np.sum(np.square(value.astype(np.float64))) for value in values)))
