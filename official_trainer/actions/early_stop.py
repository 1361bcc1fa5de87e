"""Ends a run before its last step: patience is over, a target is reached, or the time is up.

What the history says is decided anew from it at each evaluation and each start, so that nothing has to be saved, and a
run that was killed ends where it would have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from official_trainer.actions.config import EarlyStopConfig, StopAtConfig
from official_trainer.actions.event import Event
from official_trainer.checkpoint.ranking import is_better
from official_trainer.config.comparison import comparison as resolved_comparison
from official_trainer.config.trainer import TrainerConfig
from official_trainer.history import History
from official_trainer.state import TrainState


def num_without_gain(
  series: Sequence[tuple[int, float]],
  comparison: str,
  *,
  min_delta: float = 0.0,
  start_step: int = 0,
  baseline: float | None = None,
) -> tuple[int, float | None]:
  """Returns how many of the newest values in a row are no better than the best before them, and that best.

  A value that is not finite is never better.

  Args:
    series: (step, value) in the order of the steps.
    comparison: "higher" or "lower".
    min_delta: by how much a value must be better.
    start_step: values before it do not count.
    baseline: what the first value must beat, or None.
  """
  best, num = baseline, 0
  for step, value in series:
    if step < start_step:
      continue
    if is_better(value, best, comparison, min_gain=min_delta):
      best, num = value, 0
    else:
      num += 1
  return num, best


def out_of_patience(history: History, config: EarlyStopConfig) -> str | None:
  """Says why a run with this history ends by early stopping; None while it goes on."""
  comparison = resolved_comparison(config.metric, config.comparison)
  num, best = num_without_gain(
    history.named_series(config.metric),
    comparison,
    min_delta=config.min_delta,
    start_step=config.start_step,
    baseline=config.baseline,
  )
  if num < config.patience:
    return None
  than = "finite" if best is None else f"{comparison} than {best:g}"
  if config.min_delta and best is not None:
    than += f" by {config.min_delta:g}"
  return f"early stop: {config.metric} was not {than} in {num} evaluations"


def target_reached(history: History, config: StopAtConfig) -> str | None:
  """Says why a run with this history ends because of its newest evaluation; None while it goes on."""
  series = history.named_series(config.metric)
  if not series or config.value is None:
    return None
  _, value = series[-1]
  if not is_better(value, config.value, resolved_comparison(config.metric, config.comparison), ties="last"):
    return None
  return f"target reached: {config.metric} is {value:g}, {config.value:g} was asked for"


def ending_metric_names(options: TrainerConfig) -> dict[str, str]:
  """Maps the config key of each rule that ends a run to the metric it watches."""
  rules = {"trainer.early_stop.metric": options.early_stop, "trainer.stop_at.metric": options.stop_at}
  return {key: rule.metric for key, rule in rules.items() if rule is not None}


def history_rules(options: TrainerConfig) -> list[Callable[[History], str | None]]:
  """Returns the rules of a config that are functions of the history."""
  early, target = options.early_stop, options.stop_at
  rules: list[Callable[[History], str | None]] = []
  if early is not None:
    rules.append(lambda history: out_of_patience(history, early))
  if target is not None:
    rules.append(lambda history: target_reached(history, target))
  return rules


class EndEarly:
  """After an evaluation: ends the run if its history says so."""

  def __init__(
    self,
    state: TrainState,
    rules: Sequence[Callable[[History], str | None]],
    *,
    train_steps: int,
    from_chief: Callable[[int], int] = int,
  ):
    """Stores its arguments.

    Args:
      state: whose history is looked at, and whose `host.finished` is set.
      rules: history -> why the run ends, or None.
      train_steps: where it ends in any case.
      from_chief: returns the chief's number, whoever calls it: processes that train together end together.
    """
    self._state = state
    self._rules = tuple(rules)
    self._train_steps = train_steps
    self._from_chief = from_chief

  def __call__(self, event: Event) -> None:
    del event
    self.decide()

  def decide(self) -> None:
    """Decides now. All processes call it, at the same place of the run."""
    host = self._state.host
    if not self._rules or host.finished is not None or self._state.step >= self._train_steps:
      return
    reason = next(filter(None, (rule(host.history) for rule in self._rules)), None)
    if self._from_chief(reason is not None):
      host.finished = reason or "the chief's history says so"
