"""What must fit together in exports and in what is written besides."""

from collections import Counter
from collections.abc import Iterator

from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import Problem
from official_trainer.writers.config import WandbConfig

BEST_EXPORT = "best_export"
"""Folder of the export of the best weights, inside model_dir."""

ALWAYS_ON = ("console", "history", "jsonl", "timings", "tensorboard")
WANDB = "wandb"

_EXPORT = "trainer.export"
_ELSEWHERE = ("multi_worker_mirrored", "parameter_server", "tpu")


def export_problems(config: ExperimentConfig) -> Iterator[Problem]:
  """Yields what would do nothing, or could not be done."""
  trainer = config.trainer
  export = trainer.export
  has_rule = bool(trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric)
  needs = "needs trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric, which say what is best."
  if export.on_best and not has_rule:
    yield Problem(f"{_EXPORT}.on_best", needs)
  if export.source == "best" and not has_rule:
    yield Problem(f"{_EXPORT}.source", f"is 'best', which {needs}")
  if export.weights == "averages" and trainer.optimizer_config.ema is None:
    message = "is 'averages', but trainer.optimizer_config.ema is not set: the run has none."
    yield Problem(f"{_EXPORT}.weights", message)
  if not export.formats:
    yield Problem(f"{_EXPORT}.formats", "must name at least one of saved_model, weights_h5.")
  for name in _repeated(export.formats):
    yield Problem(f"{_EXPORT}.formats", f"names {name!r} twice.")
  folders = {"trainer.best_checkpoint_export_subdir": trainer.best_checkpoint_export_subdir}
  folders |= {f"trainer.best_checkpoints.{i}.subdir": rule.subdir for i, rule in enumerate(trainer.best_checkpoints)}
  for key, folder in folders.items():
    if export.on_best and folder.strip("/") == BEST_EXPORT:
      yield Problem(key, f"is {BEST_EXPORT!r}, the folder of exports. Choose another name.")


def best_export_problems(config: ExperimentConfig) -> Iterator[Problem]:
  """Yields why a process that trains cannot export its best weights as well."""
  strategy = config.runtime.distribution_strategy
  if config.trainer.export.on_best and strategy in _ELSEWHERE:
    message = (
      f"is done by one process, not under {strategy!r}.\n"
      "Run --mode=continuous_eval beside the training with it, or --mode=export afterwards."
    )
    yield Problem(f"{_EXPORT}.on_best", message)


def writer_problems(config: ExperimentConfig) -> Iterator[Problem]:
  """Yields settings of writers that would do nothing."""
  trainer = config.trainer
  for name in trainer.writers:
    if name in ALWAYS_ON:
      yield Problem("trainer.writers", f"names {name!r}, which is always there. Leave it out.")
  for name in _repeated(trainer.writers):
    yield Problem("trainer.writers", f"names {name!r} twice.")
  if WANDB not in trainer.writers and trainer.wandb != WandbConfig():
    yield Problem("trainer.wandb", f"has no effect unless trainer.writers names {WANDB!r}.")
  for name in trainer.writer_arguments:
    if name not in trainer.writers:
      yield Problem(f"trainer.writer_arguments.{name}", f"has no effect unless trainer.writers names {name!r}.")


def _repeated(names: tuple[str, ...]) -> list[str]:
  return sorted(name for name, count in Counter(names).items() if count > 1)
