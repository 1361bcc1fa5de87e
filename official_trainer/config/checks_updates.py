"""What must fit together in how weights are updated: groups, transformations of gradients, accumulation."""

import re
from collections.abc import Iterator, Sequence

from official_trainer.config import hints
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.nearest import meant
from official_trainer.errors import Problem
from official_trainer.optim.config import (
  DEFAULT_GROUP,
  FACTORS,
  GradientTransformConfig,
  ParamGroupConfig,
  ScheduleConfig,
)

_GROUPS = "trainer.optimizer_config.param_groups"
_TRANSFORMS = "trainer.optimizer_config.gradient_transforms"
_NO_RULE = ParamGroupConfig()


def update_problems(config: ExperimentConfig) -> Iterator[Problem]:
  """Yields what would do nothing, or could not be done."""
  optimization = config.trainer.optimizer_config
  yield from _groups(optimization.param_groups)
  yield from _transforms(optimization.gradient_transforms)
  for name, schedule in config.trainer.schedules.items():
    yield from _schedule(f"trainer.schedules.{name}", schedule)
  for name in ("freeze_statistics", "freeze_affine"):
    for index, pattern in enumerate(getattr(config.trainer.batch_norm, name)):
      if problem := _bad_pattern(pattern):
        yield Problem(f"trainer.batch_norm.{name}.{index}", problem)


def _groups(rules: Sequence[ParamGroupConfig]) -> Iterator[Problem]:
  """What is wrong with rules, whatever the model."""
  names: dict[str, int] = {}
  for index, rule in enumerate(rules):
    path = f"{_GROUPS}.{index}"
    if problem := _bad_pattern(rule.pattern):
      yield Problem(f"{path}.pattern", problem)
      continue
    if rule.layer_decay is not None and not re.compile(rule.pattern).groups:
      message = (
        f"needs the number of the layer as a group of the pattern, such as 'layer_(\\d+)/', got {rule.pattern!r}."
      )
      yield Problem(f"{path}.layer_decay", message)
    if rule.label == DEFAULT_GROUP:
      yield Problem(f"{path}.name", f"must not be {DEFAULT_GROUP!r}: that is the group of all other variables.")
    if rule.label in names:
      message = f"is {rule.label!r}, the name of rule {names[rule.label]} already. Give one of them another name."
      yield Problem(f"{path}.name", message)
    names.setdefault(rule.label, index)
    yield from _contradictions(path, rule)


def _contradictions(path: str, rule: ParamGroupConfig) -> Iterator[Problem]:
  """Settings that would do nothing."""
  if rule.frozen:
    for name in ("lr_multiplier", "layer_decay", "weight_decay", "optimizer"):
      if getattr(rule, name) != getattr(_NO_RULE, name):
        message = f"has no effect, because {path}.frozen is true. Set one of them."
        yield Problem(f"{path}.{name}", message)
  if rule.optimizer is None:
    for name in ("learning_rate", "warmup"):
      if getattr(rule, name) is not None:
        message = f"has no effect without {path}.optimizer; for another rate of the same optimizer set lr_multiplier."
        yield Problem(f"{path}.{name}", message)
  elif rule.optimizer.type is None:
    yield Problem(f"{path}.optimizer.type", "must be chosen.")


def _transforms(transforms: Sequence[GradientTransformConfig]) -> Iterator[Problem]:
  for index, transform in enumerate(transforms):
    if transform.type is None:
      yield Problem(f"{_TRANSFORMS}.{index}.type", "must be chosen.")
    if transform.type == "custom" and not transform.custom.name:
      yield Problem(f"{_TRANSFORMS}.{index}.custom.name", "must be the name that a function was registered under.")


def _schedule(path: str, schedule: ScheduleConfig) -> Iterator[Problem]:
  if schedule.type is None:
    yield Problem(f"{path}.type", "must be chosen.")
    return
  chosen = schedule.get()
  for key, field in hints.fields_of(type(chosen)).items():
    if field.metadata.get("text", "").endswith("Required.") and getattr(chosen, key) in (None, ""):
      yield Problem(f"{path}.{schedule.type}.{key}", f"must be set when '{schedule.type}' is chosen.")
  if schedule.type == "stepwise" and chosen.boundaries and chosen.values:
    if len(chosen.values) != len(chosen.boundaries) + 1:
      wanted = f"{len(chosen.boundaries) + 1} for {len(chosen.boundaries)} boundaries"
      yield Problem(f"{path}.stepwise.values", f"must have {wanted}, got {len(chosen.values)}.")
  if schedule.type == "multi_factor":
    for factor in (name.strip() for name in chosen.factors.split("*")):
      if factor not in FACTORS:
        allowed = f"must be of {', '.join(FACTORS)}, joined by '*'; got {factor!r}.{meant(factor, FACTORS)}"
        yield Problem(f"{path}.multi_factor.factors", allowed)


def _bad_pattern(pattern: str) -> str | None:
  try:
    re.compile(pattern)
  except re.error as error:
    return f"is no regular expression: {pattern!r} ({error})."
  return None if pattern else "must be a regular expression that paths are searched for."
