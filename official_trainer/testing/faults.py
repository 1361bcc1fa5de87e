"""Faults on purpose, as context managers: of training at an exact step, and of the disk.

    with pytest.raises(faults.SimulatedCrash), faults.crash_at(5):
      runner.run()

`step` is the number of completed updates. A fault of training "at step 5" comes when five updates are done, before the
sixth, also in the middle of a compiled inner loop; at the last step of a run it never comes. Each context yields a
`Fault`, and raises FaultDidNotHappen if its body ends well without it. Outside of the contexts nothing of this is
there: a trainer pays for none of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from official_trainer.testing.damage import flip_bit, flipped_bit, read_only
from official_trainer.testing.fault import Fault, FaultDidNotHappen, SimulatedCrash, kill, patched
from official_trainer.testing.full_disk import full_disk, kill_at_write
from official_trainer.testing.injection import EVALUATION, TRAINING, injected
from official_trainer.testing.nan_inputs import with_nan
from official_trainer.trainer import Trainer

__all__ = [
  "Fault",
  "FaultDidNotHappen",
  "SimulatedCrash",
  "crash_at",
  "flip_bit",
  "flipped_bit",
  "full_disk",
  "hang_at",
  "kill_at",
  "kill_at_write",
  "nan_at",
  "read_only",
  "signal_at",
  "slow_input",
]


@contextlib.contextmanager
def kill_at(step: int, *, during: str = TRAINING) -> Iterator[Fault]:
  """Kills this process with SIGKILL at `step`: nothing is flushed, no handler runs. For child processes of a test.

  Args:
    step: completed updates.
    during: "training", or "evaluation" for the first batch of the evaluation at that step.
  """
  with _at_step("kill_at", step, kill, during=during) as fault:
    yield fault


@contextlib.contextmanager
def crash_at(step: int, *, during: str = TRAINING) -> Iterator[Fault]:
  """Raises SimulatedCrash out of the trainer at `step`: the moment of `kill_at`, for tests in one process.

  What a kill cuts off goes on here: `finally` clauses, and threads. So a save that has begun is finished. Arguments as
  those of `kill_at`.
  """

  def crash(at: int) -> None:
    raise SimulatedCrash(at)

  def recognisable(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_convert(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
      try:
        return run(trainer, *args, **kwargs)
      except tf.errors.OpError as error:  # What TensorFlow makes of every exception in a compiled loop.
        if not fault.happened or SimulatedCrash.__name__ not in str(error):
          raise
        raise SimulatedCrash(step) from error

    return run_and_convert

  method = "evaluate" if during == EVALUATION else "train"
  with _at_step("crash_at", step, crash, during=during) as fault, patched(Trainer, method, recognisable):
    yield fault


@contextlib.contextmanager
def hang_at(step: int, *, during: str = TRAINING) -> Iterator[Fault]:
  """Blocks inside the compiled loop at `step`, until the context is left; another thread has to. As `kill_at`."""
  released = threading.Event()
  with _at_step("hang_at", step, lambda _: released.wait(), during=during) as fault:
    try:
      yield fault
    finally:
      released.set()


@contextlib.contextmanager
def signal_at(step: int, number: int, *, during: str = TRAINING, times: int | None = 1) -> Iterator[Fault]:
  """Sends this process the signal `number`, such as `signal.SIGTERM`, at `step`.

  Args:
    step: completed updates.
    number: of the signal.
    during: "training", or "evaluation" for the first batch of the evaluation at that step.
    times: how often, if the step comes more than once; None: always.
  """
  with _at_step("signal_at", step, lambda _: os.kill(os.getpid(), number), during=during, times=times) as fault:
    yield fault


@contextlib.contextmanager
def slow_input(secs: float, *, every: int = 1, sleep: Callable[[float], Any] = time.sleep) -> Iterator[Fault]:
  """Makes the inputs of every `every`-th update, the first one among them, come `secs` late."""
  if every < 1:
    raise ValueError(f"`every` of slow_input must be at least 1 step, got {every}.")
  fault = Fault(f"slow_input({secs}, every={every})", times=None)
  with injected(fault, lambda step: step % every == 0, act=lambda _: sleep(secs)):
    yield fault


@contextlib.contextmanager
def nan_at(step: int, replica: int | None = None, *, times: int | None = 1) -> Iterator[Fault]:
  """Puts NaN in the place of every floating-point number of the inputs of the update after `step`.

  Args:
    step: completed updates before it.
    replica: whose examples are hit, among those that this process feeds; None: those of all.
    times: how often, if the step comes more than once because the run was rolled back; None: always.

  Raises, when the training loop is compiled:
    ValueError: if there is no such replica, or if the inputs hold no floating-point tensor.
  """
  fault = Fault(f"nan_at({_checked('nan_at', step)}{'' if replica is None else f', replica={replica}'})", times)

  def change(trainer: Trainer, inputs: Any, is_due: tf.Tensor) -> Any:
    return with_nan(inputs, is_due, replica, trainer.strategy)

  with injected(fault, lambda at: at == step, change=change):
    yield fault


def _at_step(
  name: str, step: int, act: Callable[[int], Any], *, during: str, times: int | None = 1
) -> contextlib.AbstractContextManager[Fault]:
  place = "" if during == TRAINING else f", during={during!r}"
  fault = Fault(f"{name}({_checked(name, step)}{place})", times)
  return injected(fault, lambda at: at == step, act=act, during=during)


def _checked(name: str, step: int) -> int:
  if step < 0:
    raise ValueError(f"`step` of {name} counts completed updates and must be at least 0, got {step}.")
  return step
