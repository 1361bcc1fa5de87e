"""The bundle that a run leaves behind when it diverges, fails or hangs: model_dir/crashes/step-<step>.json.

It holds what is needed to understand the moment without the process: the step, the error, the stacks of all threads,
the last rows of the history, the config and the versions. `--mode=replay` reads from it which steps to look at.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import tensorflow as tf

from official_trainer.atomic import write_text
from official_trainer.errors import ConfigError

_FOLDER = "crashes"
_NAME = re.compile(r"step-(\d+)\.json$")
_FORMAT_VERSION = 1
_NUM_ROWS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrashBundle:
  """Attributes:
  kind: "diverged", "error" or "hang".
  step: completed updates when it was noticed.
  start: completed updates at the last moment that was good, or None.
  skipped: (first, end) of the batches that were left out by then.
  what: the error in one line.
  traceback: where it was raised, or "".
  stacks: thread name -> its stack at that time.
  rows: the last rows of the history, as (step, mode, metrics).
  facts: seed, number of replicas, versions.
  config: the text of params.yaml, or None where there is none.
  wall_time: when, in UTC.
  """

  kind: str
  step: int
  start: int | None = None
  skipped: tuple[tuple[int, int], ...] = ()
  what: str
  traceback: str = ""
  stacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
  rows: Sequence[tuple[int, str, Mapping[str, float]]] = ()
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  config: str | None = None
  wall_time: str = ""

  def save(self, model_dir: str) -> str:
    """Writes the bundle and returns its path. One that is there for the same step is replaced."""
    path = os.path.join(model_dir, _FOLDER, f"step-{self.step}.json")
    rows = [[step, mode, {name: str(value) for name, value in row.items()}] for step, mode, row in self.rows]
    content = {"format_version": _FORMAT_VERSION, **dataclasses.asdict(self), "rows": rows}
    write_text(path, json.dumps(content, indent=2) + "\n")
    return path


def describe(
  *,
  kind: str,
  step: int,
  what: str,
  rows: Sequence[tuple[int, str, Mapping[str, float]]],
  facts: Mapping[str, Any],
  model_dir: str,
  error: BaseException | None = None,
  start: int | None = None,
  skipped: tuple[tuple[int, int], ...] = (),
  now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> CrashBundle:
  """Gathers a bundle: the arguments, and what the process and model_dir say at this moment."""
  return CrashBundle(
    kind=kind,
    step=step,
    start=start,
    skipped=skipped,
    what=what,
    traceback="".join(traceback.format_exception(error)) if error is not None else "",
    stacks=_stacks(),
    rows=tuple(rows)[-_NUM_ROWS:],
    facts=dict(facts),
    config=_text_of(os.path.join(model_dir, "params.yaml")),
    wall_time=now().isoformat(timespec="seconds"),
  )


def newest_bundle(model_dir: str) -> CrashBundle | None:
  """Reads the bundle that was written last, of several from the same second the highest step's; None if there is none.

  Raises:
    ConfigError: if one cannot be understood.
  """
  folder = os.path.join(model_dir, _FOLDER)
  if not tf.io.gfile.isdir(folder):
    return None
  matches = (_NAME.match(os.path.basename(name)) for name in tf.io.gfile.listdir(folder))
  steps = [int(match.group(1)) for match in matches if match]
  bundles = [read_bundle(model_dir, step) for step in steps]
  return max(bundles, key=lambda bundle: (bundle.wall_time, bundle.step), default=None)


def read_bundle(model_dir: str, step: int) -> CrashBundle:
  """Reads the bundle of a step.

  Raises:
    ConfigError: if it cannot be understood.
  """
  path = os.path.join(model_dir, _FOLDER, f"step-{step}.json")
  try:
    with tf.io.gfile.GFile(path) as file:
      values = json.loads(file.read())
    names = [field.name for field in dataclasses.fields(CrashBundle)]
    known = {name: values[name] for name in names}
    known["skipped"] = tuple((int(first), int(end)) for first, end in known["skipped"])
    known["rows"] = tuple(
      (int(step), mode, {name: float(value) for name, value in row.items()}) for step, mode, row in known["rows"]
    )
    return CrashBundle(**known)
  except (ValueError, KeyError, TypeError, tf.errors.OpError) as error:
    raise ConfigError.of("--model_dir", f"{path} cannot be read ({error}). Give --replay_step instead.") from error


def _stacks() -> dict[str, str]:
  """Returns where every thread of this process is."""
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  frames = sys._current_frames()  # noqa: SLF001  # The documented way, in spite of its name.
  return {
    names.get(ident, f"thread {ident}"): "".join(traceback.format_stack(frame)) for ident, frame in frames.items()
  }


def _text_of(path: str) -> str | None:
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path) as file:
    return str(file.read())
