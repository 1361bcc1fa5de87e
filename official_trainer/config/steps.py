"""Turns the durations of a config into numbers of steps (`config.durations` says how they are written).

An epoch is one pass over the examples. The training stream runs on over its border, and batches are always full
(`data.indexed`): step s is reached when s * global_batch_size examples have gone by. A duration of training ends with
the last step that lies within it:

    training     epochs, examples    floor(examples / global_batch_size)
                 percent             floor(percent * train_steps / 100)
    evaluation   epochs, examples    ceil(examples / global_batch_size): the last batch may be a partial one

Amounts are exact fractions: 10% of 30 steps are 3, not 2.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.config import durations, hints
from official_trainer.config.assembly import field_default, join
from official_trainer.config.durations import Data, Duration, InSteps
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import ConfigError, Problem

Size = Callable[[], int | None]
"""Returns the number of examples of a data set, or None where it is not known. Called at most once, if at all."""

Visit = Callable[[InSteps, int | str, str], int | str]
"""(what the field says, its value, its dotted key) -> the value to put in its place."""

_TRAIN_STEPS = "trainer.train_steps"


class _Later(Exception):
  """The size of the data is asked for when the run is built."""


class _Unknown(Exception):
  """A duration does not stand for a number of steps; the text says why."""


def resolve(
  config: ExperimentConfig, num_examples: Size, num_validation_examples: Size = lambda: None
) -> tuple[ExperimentConfig, list[str]]:
  """Returns the config with every duration as an integer number of steps, and a line on each for people.

  Args:
    config: a config whose single values are valid.
    num_examples: the size of the training data; asked only if a duration needs it and
      `task.train_data.num_examples` does not say it.
    num_validation_examples: likewise for the evaluation data.

  Raises:
    ConfigError: with every duration that does not stand for a number of steps, and why.
  """
  resolver = _Resolver(config, num_examples, num_validation_examples)
  resolved = resolver.resolved()
  if resolver.problems:
    raise ConfigError(resolver.problems)
  return resolved, resolver.lines


def resolve_early(config: ExperimentConfig) -> tuple[ExperimentConfig | None, list[Problem]]:
  """Resolves as far as the config alone goes.

  Returns:
    (the resolved config, or None where the size of the data is needed or something is wrong; what is wrong so far).
  """

  def later() -> int | None:
    raise _Later

  resolver = _Resolver(config, later, later)
  resolved = resolver.resolved()
  return None if resolver.waits or resolver.problems else resolved, resolver.problems


def require_steps(config: Any, path: str) -> None:
  """Refuses a config in which durations still stand as they were written.

  Args:
    config: a config dataclass, or a part of one.
    path: its dotted key.

  Raises:
    ConfigError: with every such field.
  """
  problems: list[Problem] = []

  def visit(field: InSteps, value: int | str, where: str) -> int | str:
    del field
    if isinstance(value, str):
      message = (
        f"still is {value!r}, where a run needs a number of steps.\nUse the config that config.steps.resolve gives."
      )
      problems.append(Problem(where, message))
    return value

  _mapped(type(config), _spelled(config, path, problems), path, visit)
  if problems:
    raise ConfigError(problems)


class _Resolver:
  """Resolves one config.

  Attributes:
    lines: what was resolved, for people.
    problems: what could not be.
    waits: whether a size that comes later is needed.
  """

  def __init__(self, config: ExperimentConfig, num_examples: Size, num_validation_examples: Size):
    self.lines: list[str] = []
    self.problems: list[Problem] = []
    self.waits = False
    self._config = _spelled(config, "", self.problems)
    self._sizes: dict[Data, Size] = {"train": num_examples, "validation": num_validation_examples}
    self._known: dict[Data, int | None] = {}
    # Of which others may be a percentage; a text where it is not known.
    self._train_steps: int | str = 0

  def resolved(self) -> ExperimentConfig:
    trainer = self._config.trainer
    written = hints.hints_of(type(trainer))["train_steps"]
    self._train_steps = _mapped(written, trainer.train_steps, _TRAIN_STEPS, self._visit)
    config = dataclasses.replace(
      self._config, trainer=dataclasses.replace(trainer, train_steps=typing.cast(int, self._train_steps))
    )
    resolved: ExperimentConfig = _mapped(type(config), config, "", self._visit)
    return resolved

  def _visit(self, field: InSteps, value: int | str, path: str) -> int | str:
    if isinstance(value, int) or any(problem.path == path for problem in self.problems):
      return value
    duration = durations.parse(value, field.units)
    try:
      steps, how = self._steps(duration, field.data)
      if duration.amount and steps < 1:
        raise _Unknown(f"is less than one step ({how}).")
      if steps < field.least:
        raise _Unknown(f"must be at least {_steps(field.least)}.")
    except _Later:
      self.waits = True
      return value
    except _Unknown as unknown:
      self.problems.append(Problem(path, f"{value!r} {unknown}"))
      return value
    if duration.unit != "steps":
      self.lines.append(f"{path}: {value} = {_steps(steps)} ({how})")
    return steps

  def _steps(self, duration: Duration, data: Data) -> tuple[int, str]:
    """Returns a number of steps, and what it follows from."""
    match duration.unit:
      case "steps":
        return int(duration.amount), "as written"
      case "percent":
        return self._share(duration)
      case "examples":
        batch = self._batch(data)
        return _batches(duration.amount, batch, data), f"batch {batch:,}"
      case _:
        batch, examples = self._batch(data), self._examples(data)
        return _batches(duration.amount * examples, batch, data), f"{examples:,} examples, batch {batch:,}"

  def _share(self, duration: Duration) -> tuple[int, str]:
    whole = self._train_steps
    if isinstance(whole, str):
      raise _Later  # Or wrong, which is said of itself.
    if not whole:
      raise _Unknown(f"is a percentage of {_TRAIN_STEPS}, which is 0. Set that, or give steps here.")
    return int(duration.amount * whole / 100), f"of {_steps(whole)}"

  def _batch(self, data: Data) -> int:
    size = getattr(self._config.task, f"{data}_data").global_batch_size
    if size < 1:
      raise _Unknown(f"needs task.{data}_data.global_batch_size, which is {size}. Set that, or give steps here.")
    return int(size)

  def _examples(self, data: Data) -> int:
    if data not in self._known:
      written = getattr(self._config.task, f"{data}_data").num_examples
      self._known[data] = self._sizes[data]() if written is None else written
    examples = self._known[data]
    if examples is None:
      key = f"task.{data}_data.num_examples"
      raise _Unknown(f"needs the number of examples, which is not known.\nGive steps here, or set {key}.")
    return examples


def _batches(examples: Any, batch: int, data: Data) -> int:
  return int(examples // batch) if data == "train" else int(-(-examples // batch))


def _steps(number: int) -> str:
  return f"{number:,} step{'' if number == 1 else 's'}"


def _mapped(hint: Any, value: Any, path: str, visit: Visit) -> Any:
  """Returns a value of a config with `visit` applied to what stands for steps in it, itself if nothing changes."""
  if hints.is_group(type(value)):
    return _mapped_group(value, path, lambda name, kind, each: _mapped(kind, each, join(path, name), visit))
  options = hints.options(hint)
  if isinstance(value, int | str) and not isinstance(value, bool):
    field = next(filter(None, map(durations.in_steps, options)), None)
    return value if field is None else visit(field, value, path)
  arguments = next((typing.get_args(hints.bare(option)) for option in options if _holds(option, value)), ())
  if isinstance(value, list | tuple):
    items = [each for each in arguments if each is not Ellipsis] or [Any]
    kinds = items * len(value) if len(items) == 1 else items
    mapped = [_mapped(k, v, f"{path}.{i}", visit) for i, (k, v) in enumerate(zip(kinds, value, strict=False))]
    return value if all(map(operator.is_, mapped, value)) else type(value)(mapped)
  if isinstance(value, Mapping):
    kind = arguments[1] if len(arguments) == 2 else Any
    by_key = {key: _mapped(kind, each, f"{path}.{key}", visit) for key, each in value.items()}
    return value if all(map(operator.is_, by_key.values(), value.values())) else by_key
  return value


def _holds(option: Any, value: Any) -> bool:
  is_one = hints.is_mapping if isinstance(value, Mapping) else hints.is_sequence
  return is_one(hints.bare(option))


def _mapped_group(group: Any, path: str, change: Callable[[str, Any, Any], Any]) -> Any:
  declared = hints.hints_of(type(group))
  values = {name: (getattr(group, name), kind) for name, kind in declared.items()}
  changed = {name: new for name, (old, kind) in values.items() if (new := change(name, kind, old)) is not old}
  return dataclasses.replace(group, **changed) if changed else group


def _spelled(config: Any, path: str, problems: list[Problem]) -> Any:
  """Writes what fields like `train_epochs` say into the fields that they stand for; notes where both are given."""

  def change(name: str, kind: Any, value: Any) -> Any:
    del kind
    return _spelled(value, join(path, name), problems) if hints.is_group(type(value)) else value

  spelled = _mapped_group(config, path, change)
  for name, field in hints.fields_of(type(config)).items():
    other, epochs = field.metadata.get("epochs_of"), getattr(config, name)
    if other is None or epochs is None:
      continue
    given, text = getattr(config, other), f"{epochs:.15g} epochs"
    if given == field_default(hints.fields_of(type(config))[other]):
      spelled = dataclasses.replace(spelled, **{other: text, name: None})
      continue
    key, instead = join(path, name), join(path, other)
    message = (
      f"is given ({epochs:g}), and so is {instead} ({hints.shown(given)}). Give one of them.\n"
      f"Over a config that sets {instead} write '{instead}={text}'."
    )
    problems.append(Problem(key, message))
  return spelled
