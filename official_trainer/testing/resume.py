"""The proof that a task resumes exactly: a run that crashes and goes on ends with the bits of one that does not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.config.loading import LoadedExperiment, load
from official_trainer.runner import Runner
from official_trainer.testing.compare import differences, first_different_step
from official_trainer.testing.fault import SimulatedCrash
from official_trainer.testing.faults import crash_at
from official_trainer.trainer import Trainer

_SHOWN = 12


class ResumeNotExact(AssertionError):
  """A run that crashed and went on is not the run that did not.

  Attributes:
    differences: what differs, a line each.
  """

  def __init__(self, text: str, found: Sequence[str]):
    self.differences = tuple(found)
    super().__init__(text)


def assert_resumes_exactly(
  experiment: str | LoadedExperiment,
  folder: str | os.PathLike[str],
  *,
  crash_steps: Sequence[int] = (3, 5),
  mode: str = "train_and_eval",
  overrides: str | Sequence[str] | None = None,
  modules: Sequence[str] = (),
) -> None:
  """Runs an experiment twice, the second time with crashes, and compares what both leave behind, bit for bit.

  Everything happens in this process: each start builds task, model and trainer anew, but what a module of yours keeps
  in a global variable survives the crashes, as it would not survive a kill.

  Args:
    experiment: its name, or what `config.loading.load` returned.
    folder: an empty folder; gets the model_dirs `uninterrupted` and `crashed`.
    crash_steps: completed updates at which the second run crashes, in ascending order; all below `trainer.train_steps`.
    mode: "train", "train_and_eval" or "train_and_post_eval".
    overrides: settings, as `--params_override` takes them; only with a name. Keep the run short: a few steps beyond
      the last crash, with checkpoints and evaluations between the crashes.
    modules: of yours, to be imported so that the name is known, as `--experiment_module`; only with a name.

  Raises:
    ResumeNotExact: an AssertionError; if anything differs.
    FaultDidNotHappen: if a run ended before it could crash.
    ValueError: if there is no crash step, or they do not ascend.
  """
  steps = list(crash_steps)
  if not steps or steps != sorted(set(steps)):
    raise ValueError(f"`crash_steps` must be ascending numbers of completed updates, at least one; got {steps}.")
  if isinstance(experiment, LoadedExperiment):
    if overrides or modules:
      raise ValueError("`overrides` and `modules` go with an experiment's name; give them to `load` otherwise.")
    loaded = experiment
  else:
    loaded = load(experiment=experiment, experiment_modules=modules, params_override=overrides, mode=mode)
  whole, crashed = (os.path.join(os.fspath(folder), name) for name in ("uninterrupted", "crashed"))
  if taken := [path for path in (whole, crashed) if tf.io.gfile.exists(path)]:
    raise ValueError(f"{taken[0]} is there already; give an empty folder, so that both runs begin anew.")

  uninterrupted = _Remembering(loaded, mode=mode, model_dir=whole, quiet=True)
  uninterrupted.run()
  loaded = loaded.with_value("runtime.seed", uninterrupted.trainer.seed, origin="the uninterrupted run")
  resumed_from: list[int] = []
  for step in steps:
    with contextlib.suppress(SimulatedCrash), crash_at(step):
      Runner(loaded, mode=mode, model_dir=crashed, quiet=True).run()
    resumed_from += committed_steps(crashed)[-1:]
  Runner(loaded, mode=mode, model_dir=crashed, quiet=True).run()
  if found := differences(whole, crashed):
    first = first_different_step(whole, crashed)
    never_equal = first is not None and first <= min(resumed_from, default=-1)
    raise ResumeNotExact(_report(found, steps, first if never_equal else None, uninterrupted.trainer), found)


class _Remembering(Runner):
  """A runner that keeps its trainer, for what the report says of it."""

  trainer: Trainer

  def build_trainer(self, task: Any) -> Trainer:
    self.trainer = super().build_trainer(task)
    return self.trainer


def _report(found: Sequence[str], crash_steps: Sequence[int], never_equal_at: int | None, trainer: Trainer) -> str:
  lines = [f"a run that crashed at {_listed(crash_steps)} is not the run that did not:"]
  lines += [f"  - {line}" for line in found[:_SHOWN]]
  if len(found) > _SHOWN:
    lines.append(f"  - and {len(found) - _SHOWN} more")
  if never_equal_at is not None:
    lines.append(
      f"The histories differ at step {never_equal_at} already, before anything was resumed: two runs of this task are"
      " not equal even if nothing crashes."
    )
  lines += [
    "Likely causes:",
    f"  - the data: {trainer.train_input.position}. Shuffling without a seed, `deterministic: false`, or Python code in"
    " the pipeline that draws random numbers make another order each time. A `build_source` is exact by construction.",
    "  - random ops with a state (`tf.random.uniform`, `np.random` in a step, a layer's own generator made by hand):"
    " no checkpoint holds it. Use `tf.random.stateless_*` keyed by the step, or layers of tf-keras.",
    "  - state in Python: an attribute of the task or a counter in an action is gone after a crash. Keep it in a"
    " variable of the model, or in `state.host.extras`.",
    "With trainer.exact_resume=true, random ops with a state and inputs that keep no position are errors with names.",
  ]
  return "\n".join(lines)


def _listed(steps: Sequence[int]) -> str:
  return ("step " if len(steps) == 1 else "steps ") + ", ".join(map(str, steps))
