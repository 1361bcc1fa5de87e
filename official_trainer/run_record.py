"""What belongs to a run as a whole and must survive any roll-back: model_dir/run.json."""

from __future__ import annotations

import dataclasses
import json
import os

import tensorflow as tf

from official_trainer.atomic import write_text
from official_trainer.errors import ConfigError
from official_trainer.random_state import draw_seed

_FILE = "run.json"
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
  """One time that a run diverged and went back.

  Attributes:
    step: completed updates when it was noticed.
    first: number of the first batch that is left out since.
    end: number of the first batch after them.
    what: what had diverged.
  back_to: completed updates that it went back to: later ones have the lower learning rate. None where it is not known.
  """

  step: int
  first: int
  end: int
  what: str
  back_to: int | None = None

  @property
  def window(self) -> tuple[int, int]:
    return self.first, self.end

  def __str__(self) -> str:
    return f"at step {self.step} {self.what}; batches {self.first} to {self.end - 1} were left out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
  """Attributes:
  seed: the seed that everything random of this run comes from, in [0, 2**31).
  stopped_at: the step at which the run was stopped last by something that means to start it again, or None.
  recoveries: each time that the run diverged and went back, in order.
  steps_per_closure: what was measured for workers of parameter servers, or None.
  num_examples: training examples in an epoch, where a length was written in epochs: it counts for the whole run.
  """

  seed: int
  stopped_at: int | None = None
  recoveries: tuple[Recovery, ...] = ()
  steps_per_closure: int | None = None
  num_examples: int | None = None

  def save(self, model_dir: str) -> None:
    content = {"format_version": _FORMAT_VERSION, **dataclasses.asdict(self)}
    write_text(os.path.join(model_dir, _FILE), json.dumps(content, indent=2, sort_keys=True) + "\n")

  def recovered(self, recovery: Recovery) -> RunRecord:
    """Returns the record with one more recovery."""
    return dataclasses.replace(self, recoveries=(*self.recoveries, recovery))


def load_record(model_dir: str | None) -> RunRecord | None:
  """Reads the record of the run in this folder; None if there is none.

  Raises:
    ConfigError: if the file is there but cannot be understood.
  """
  if not model_dir:
    return None
  path = os.path.join(model_dir, _FILE)
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path) as file:
    text = file.read()
  try:
    values = json.loads(text)
    return RunRecord(
      seed=int(values["seed"]),
      stopped_at=_whole(values.get("stopped_at")),
      recoveries=tuple(Recovery(**recovery) for recovery in values.get("recoveries", ())),
      steps_per_closure=_whole(values.get("steps_per_closure")),
      num_examples=_whole(values.get("num_examples")),
    )
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ConfigError.of(
      "--model_dir",
      f"{path} cannot be read ({error}); it holds the run's seed and what it must leave out. Restore it, or use a new"
      " folder.",
    ) from error


def _whole(value: float | str | None) -> int | None:
  return None if value is None else int(value)


def settled_seed(seed: int | None, model_dir: str | None) -> int:
  """Returns the seed of the run: the recorded one, else the config's, else a new one.

  Args:
    seed: `runtime.seed`, or None.
    model_dir: the run's folder, or None.

  Raises:
    ConfigError: if the folder's run was started with another seed.
  """
  record = load_record(model_dir)
  if record is None:
    return draw_seed() if seed is None else seed
  if seed is not None and seed != record.seed:
    raise ConfigError.of(
      "runtime.seed",
      f"the run in {model_dir} was started with seed {record.seed}, the config says {seed}. A run keeps its seed:"
      " leave it unset, set the recorded one, or use another --model_dir.",
    )
  return record.seed
