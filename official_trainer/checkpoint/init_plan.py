"""Which value of a file goes to which variable of a model. Pure: names and shapes in, a report out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from official_trainer.checkpoint.config import InitConfig
from official_trainer.checkpoint.init_report import InitReport, Spec
from official_trainer.config.nearest import nearest
from official_trainer.errors import ConfigError, Problem

_SPECIAL = re.compile(r"\\[AZbBdDsSwW]|[\\^$.*+?()\[\]|{}]")


@dataclasses.dataclass(frozen=True)
class Value:
  """One value of a file.

  Attributes:
    names: how it may be called, the best name first. No two values of a file share one.
    spec: its shape and type.
    key: where the file has it.
  """

  names: tuple[str, ...]
  spec: Spec
  key: str


def plan(
  values: Sequence[Value],
  variables: Mapping[str, Spec],
  rules: InitConfig,
  *,
  key: str,
  given: Collection[str] = (),
) -> tuple[InitReport, dict[str, Value]]:
  """Finds the value of each variable.

  Args:
    values: what the file holds.
    variables: path -> shape and type of every variable of the model.
    rules: prefixes, name map, and what to skip or to resize.
    key: the setting that `rules` are, for errors.
    given: variables that another source fills, which comes first.

  Returns:
    The report, and the value of each variable among its `loaded`.

  Raises:
    ConfigError: with every prefix and every pattern that matches nothing, and every variable that two values lead to.
  """
  below = _prefix(rules.target_prefix)
  targets = {path: spec for path, spec in variables.items() if path.startswith(below)}
  renaming = _Renaming(rules)
  found: dict[str, tuple[str, Value]] = {}
  clashes: list[Problem] = []
  unused: dict[str, Spec] = {}
  for value in values:
    pairs = [(name, below + new) for name in value.names if (new := renaming(name)) is not None]
    name, path = next(((name, path) for name, path in pairs if path in targets), (None, ""))
    if name is None:
      if pairs:
        unused[pairs[0][0]] = value.spec
    elif path in found:
      clashes.append(Problem(f"{key}.name_map", f"'{found[path][0]}' and '{name}' of the file both lead to '{path}'."))
    else:
      found[path] = (name, value)
  problems = [
    *_unmatched_prefixes(rules, key, variables, targets, values, renaming),
    *renaming.problems(f"{key}.name_map"),
    *_unmatched(f"{key}.skip", rules.skip, targets),
    *_unmatched(f"{key}.resize", [pattern for pattern, _ in rules.resize], targets),
    *clashes,
  ]
  if problems:
    raise ConfigError(problems)

  skipped = [path for path in targets if any(re.search(pattern, path) for pattern in rules.skip)]
  left = [path for path in targets if path not in given and path not in skipped]
  resized, mismatched = {}, {}
  for path in left:
    if path not in found or targets[path].takes(spec := found[path][1].spec):
      continue
    hook = next((hook for pattern, hook in rules.resize if re.search(pattern, path)), None)
    if hook is not None and targets[path].takes_type(spec):
      resized[path] = hook
    else:
      mismatched[path] = (targets[path], spec)
  loaded = [path for path in left if path in found and path not in mismatched]
  report = InitReport(
    key=key,
    source=_described(rules),
    loaded={path: found[path][0] for path in loaded},
    skipped=tuple(path for path in skipped if path not in given),
    given=tuple(path for path in targets if path in given),
    missing={path: targets[path] for path in left if path not in found},
    mismatched=mismatched,
    resized=resized,
    unused=unused,
  )
  return report, {path: found[path][1] for path in loaded}


class _Renaming:
  """Takes the prefix off a name of the file and applies the first rule that matches; remembers what matched."""

  def __init__(self, rules: InitConfig):
    self._prefix = _prefix(rules.source_prefix)
    self._rules = rules.name_map
    self._matched: set[int] = set()
    self._applied: set[int] = set()
    self.seen: list[str] = []

  def __call__(self, name: str) -> str | None:
    """Returns the new name, or None for one that is not below the prefix."""
    if not name.startswith(self._prefix):
      return None
    name = name.removeprefix(self._prefix)
    self.seen.append(name)
    matching = [index for index, (pattern, _) in enumerate(self._rules) if re.search(pattern, name)]
    self._matched.update(matching)
    if not matching:
      return name
    self._applied.add(matching[0])
    return re.sub(*self._rules[matching[0]], name)

  def problems(self, key: str) -> Iterator[Problem]:
    if not self.seen:
      return  # The prefix is what is wrong.
    for index, (pattern, _) in enumerate(self._rules):
      if index not in self._matched:
        yield Problem(f"{key}.{index}", f"'{pattern}' matches no name of the file.{_candidates(pattern, self.seen)}")
      elif index not in self._applied:
        yield Problem(f"{key}.{index}", f"'{pattern}' matches only names that rules before it take. Put it first.")


def _unmatched_prefixes(
  rules: InitConfig,
  key: str,
  variables: Collection[str],
  targets: Collection[str],
  values: Sequence[Value],
  renaming: _Renaming,
) -> Iterator[Problem]:
  if not targets:
    message = f"no variable of the model is below '{_prefix(rules.target_prefix)}'."
    yield Problem(f"{key}.target_prefix", message + _candidates(rules.target_prefix, list(variables)))
  if not renaming.seen:
    names = [name for value in values for name in value.names]
    message = f"nothing in the file is below '{_prefix(rules.source_prefix)}'."
    yield Problem(f"{key}.source_prefix", message + _candidates(rules.source_prefix, names))


def _unmatched(key: str, patterns: Sequence[str], targets: Collection[str]) -> Iterator[Problem]:
  for index, pattern in enumerate(patterns):
    if targets and not any(re.search(pattern, path) for path in targets):
      message = f"'{pattern}' matches no variable that is to be initialised.{_candidates(pattern, list(targets))}"
      yield Problem(f"{key}.{index}", message)


def _candidates(written: str, names: Sequence[str]) -> str:
  """Suggests names, or what they begin with, that resemble a pattern or a prefix."""
  if not names:
    return " There are none."
  scopes = [name[: match.end()] for name in names for match in re.finditer("/", name)]
  near = nearest(_SPECIAL.sub("", written), dict.fromkeys([*names, *scopes]), count=3) or list(names[:3])
  return f" The nearest: {', '.join(near)}."


def _prefix(written: str) -> str:
  """Returns a prefix that ends where a part of a name does."""
  return written if not written or written.endswith("/") else f"{written}/"


def _described(rules: InitConfig) -> str:
  text = rules.checkpoint + (" (averages)" if rules.averages else "")
  if rules.source_prefix or rules.target_prefix:
    text += f" with '{_prefix(rules.source_prefix)}' -> '{_prefix(rules.target_prefix)}'"
  return text
