"""What must fit together in the settings of `inspect/config.py`."""

from collections.abc import Iterator

from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import Problem


def inspection(config: ExperimentConfig) -> Iterator[Problem]:
  """Windows without a step, settings without effect, and what workers of parameter servers do not let one look at."""
  trainer = config.trainer
  if trainer.profile.steps is not None:
    first, end = trainer.profile.steps
    if first >= end:
      yield Problem("trainer.profile.steps", f"needs first < end, got [{first}, {end}].")
    elif trainer.train_steps and end > trainer.train_steps:
      message = f"must end by trainer.train_steps ({trainer.train_steps}), got [{first}, {end}]."
      yield Problem("trainer.profile.steps", message)
  if trainer.compress_graphs and trainer.dump_graphs == "none":
    message = "has no effect: no graphs are written. Set trainer.dump_graphs to 'text' or 'all', or leave it off."
    yield Problem("trainer.compress_graphs", message)
  if config.runtime.distribution_strategy == "parameter_server":
    for name, off in (("dump_graphs", "none"), ("inspect_model", False)):
      if getattr(trainer, name) != off:
        message = "has no effect under 'parameter_server', whose workers trace the step. Use a run without a cluster."
        yield Problem(f"trainer.{name}", message)
