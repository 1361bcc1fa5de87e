"""What differs between the config of a run's last start and the present one, and whether that may be."""

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from official_trainer.config import yaml_text
from official_trainer.config.nearest import meant
from official_trainer.errors import Problem

FREE = frozenset(
  [
    "runtime.cluster_labels",
    "runtime.cluster_port",
    "runtime.cluster_resolver",
    "runtime.cluster_timeout_secs",
    "runtime.grace_secs",
    "runtime.hang_secs",
    "runtime.initialize_on_host",
    "runtime.preemption_notice",
    "runtime.task_index",
    "runtime.worker_hosts",
    "trainer.async_checkpoint",
    "trainer.checkpoint_interval",
    "trainer.checkpoints_at",
    "trainer.compress_graphs",
    "trainer.continuous_eval_timeout",
    "trainer.evaluate_first_loop",
    "trainer.first_loop_steps",
    "trainer.max_to_keep",
    "trainer.max_wall_secs",
    "trainer.save_checkpoints",
    "trainer.dump_graphs",
    "trainer.inspect_model",
    "trainer.profile.on_demand_steps",
    "trainer.profile.steps",
    "trainer.steps_per_loop",
    "trainer.summary_interval",
    "trainer.validation_interval",
    "trainer.validation_summary_subdir",
    "trainer.write_summaries",
  ]
)
"""Keys that say when something is saved, reported or kept, and which machines do it: weights do not depend on them."""

FREE_GROUPS = ("trainer.export.", "trainer.wandb.", "trainer.writer_arguments", "trainer.writers")
"""Likewise, for all keys that begin so."""

_MISSING = "(not there)"
_FLAG = "--allow_config_change"


def changes(before: str, after: str) -> dict[str, tuple[Any, Any]]:
  """Maps each key that differs between two params.yaml texts to (old, new), in the order of the keys."""
  old, new = flat_values(before), flat_values(after)
  pairs = {key: (old.get(key, _MISSING), new.get(key, _MISSING)) for key in sorted(old.keys() | new.keys())}
  return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def changed_keys(before: str, after: str) -> list[str]:
  """Lists the differences as "key: old -> new"."""
  return [f"{key}: {old} -> {new}" for key, (old, new) in changes(before, after).items()]


def problems(before: str, after: str, allowed: Collection[str]) -> list[Problem]:
  """Lists what a run that is continued must not change without being told to.

  Args:
    before: params.yaml of the last start.
    after: that of this one.
    allowed: keys, or groups of keys, that may change.
  """
  found = [
    Problem(key, f"was {old} when this run started, now {new}.")
    for key, (old, new) in changes(before, after).items()
    if key not in FREE
    and not key.startswith(FREE_GROUPS)
    and not any(key == name or key.startswith(f"{name}.") for name in allowed)
  ]
  if found:
    keys = ",".join(problem.path for problem in found)
    hint = f"continues this run with the change{'s' if len(found) > 1 else ''}; another --model_dir begins a new one."
    found.append(Problem(f"{_FLAG}={keys}", hint))
  known = flat_values(after).keys() | flat_values(before).keys()
  for name in allowed:
    if not any(key == name or key.startswith(f"{name}.") for key in known):
      found.append(Problem(_FLAG, f"names '{name}', which is no key of this config.{meant(name, known)}"))
  return found


@functools.lru_cache(maxsize=2)
def flat_values(text: str) -> Mapping[str, Any]:
  """Maps the dotted keys of a params.yaml to their values. A start asks several times for the same two texts."""
  return dict(_leaves(yaml_text.read(text).values))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  for key, value in values.items():
    if isinstance(value, Mapping) and value:
      yield from _leaves(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}", value
