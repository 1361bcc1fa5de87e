"""Which variable belongs to which group: ordered rules over variable paths, the first that matches counts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from official_trainer.config.nearest import nearest
from official_trainer.errors import ConfigError, Problem
from official_trainer.optim.config import DEFAULT_GROUP, ParamGroupConfig

_KEY = "trainer.optimizer_config.param_groups"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Membership:
  """How one variable is updated.

  Attributes:
    group: name of its group.
    lr_multiplier: factor on the updates of its group.
    layer_factor: factor on its update by layer-wise decay, beside that.
    weight_decay: in place of the optimizer's own; None for that.
    frozen: whether it keeps its value.
    rule: number of its rule, None without one.
  """

  group: str = DEFAULT_GROUP
  lr_multiplier: float = 1.0
  layer_factor: float = 1.0
  weight_decay: float | None = None
  frozen: bool = False
  rule: int | None = None


def assign(paths: Sequence[str], rules: Sequence[ParamGroupConfig]) -> dict[str, Membership]:
  """Assigns each path to the first rule whose pattern is found in it, or to the default group.

  Args:
    paths: of the trainable variables.
    rules: in order; patterns are searched, as by `re.search`.

  Returns:
    path -> membership, in the order of `paths`.

  Raises:
    ConfigError: naming every rule without a variable of its own.
  """
  matched: dict[int, list[tuple[str, re.Match[str]]]] = {index: [] for index in range(len(rules))}
  for path in paths:
    found = ((index, re.search(rule.pattern, path)) for index, rule in enumerate(rules))
    first = next(((index, match) for index, match in found if match), None)
    if first is not None:
      matched[first[0]].append((path, first[1]))
  problems = [_unused(index, rules, paths) for index in matched if not matched[index]]
  if problems:
    raise ConfigError(problems)
  members = dict.fromkeys(paths, Membership())
  for index, matches in matched.items():
    rule = rules[index]
    for path, factor in _layer_factors(rule, matches, f"{_KEY}.{index}").items():
      members[path] = Membership(
        group=rule.label,
        lr_multiplier=rule.lr_multiplier,
        layer_factor=factor,
        weight_decay=rule.weight_decay,
        frozen=rule.frozen,
        rule=index,
      )
  return members


def _layer_factors(
  rule: ParamGroupConfig, matches: Sequence[tuple[str, re.Match[str]]], key: str
) -> Mapping[str, float]:
  """Returns path -> factor on the update by layer-wise decay (Clark et al., ELECTRA, 2020, appendix A)."""
  if rule.layer_decay is None:
    return dict.fromkeys((path for path, _ in matches), 1.0)
  layers: dict[str, int] = {}
  problems = []
  for path, match in matches:
    written = next((group for group in match.groups() if group is not None and group.isdigit()), None)
    if written is None and any(group is not None for group in match.groups()):
      problems.append(Problem(f"{key}.layer_decay", f"needs a number as the pattern's group, but '{path}' has none."))
    layers[path] = -1 if written is None else int(written)
  if problems:
    raise ConfigError(problems)
  num_layers = max(layers.values()) + 1
  return {path: rule.layer_decay ** (num_layers - layer) for path, layer in layers.items()}


def _unused(index: int, rules: Sequence[ParamGroupConfig], paths: Sequence[str]) -> Problem:
  pattern = rules[index].pattern
  key = f"{_KEY}.{index}.pattern"
  found = [path for path in paths if re.search(pattern, path)]
  if found:
    first = next(rule.label for rule in rules if re.search(rule.pattern, found[0]))
    message = f"{pattern!r} matches only variables that rules before it have, such as '{found[0]}' in {first!r}."
    return Problem(key, f"{message}\nPut the more special rule first.")
  near = nearest(pattern, paths, count=3) or list(paths[:3])
  shown = ", ".join(f"'{path}'" for path in near)
  return Problem(key, f"{pattern!r} matches no trainable variable. The nearest: {shown}.")
