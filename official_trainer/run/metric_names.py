"""Every metric that a config names is one that the evaluation reports: found out before the first step."""

from __future__ import annotations

from official_trainer.actions.early_stop import ending_metric_names
from official_trainer.checkpoint.best_rules import best_metric_names
from official_trainer.config.nearest import meant
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import ConfigError, Problem
from official_trainer.trainer import Trainer


def metric_names(options: TrainerConfig) -> dict[str, str]:
  """Maps the key of each metric that rules of a config watch to its name."""
  plateaus = {
    f"trainer.schedules.{name}.plateau.metric": schedule.plateau.metric
    for name, schedule in options.schedules.items()
    if schedule.type == "plateau"
  }
  return {**best_metric_names(options), **ending_metric_names(options), **plateaus}


def are_known(trainer: Trainer, wanted: dict[str, str]) -> bool:
  """Says whether the history holds all of them: a run that is continued has evaluated before, but a rule may be new."""
  history = trainer.state.host.history
  return all(map(history.named_series, wanted.values())) and set(trainer.evaluation_set_names).issubset(history.modes)


def require_reported(trainer: Trainer, wanted: dict[str, str]) -> None:
  """Evaluates one batch, discards it, and checks the names.

  Raises:
    ConfigError: with every name that is not reported.
  """
  reported = trainer.rehearse_evaluation()
  problems = [
    Problem(
      key,
      f"{name!r} is not reported by the evaluation.{meant(name, reported)} Reported: {', '.join(reported)}.",
    )
    for key, name in wanted.items()
    if name not in reported
  ]
  if problems:
    raise ConfigError(problems)
