"""How long, how often and what to keep: the settings of the loop."""

import dataclasses
from typing import Annotated, Any, Literal

import annotated_types as limits

from official_trainer.config.durations import EvaluationSteps, PositiveSteps, Steps, TrainSteps
from official_trainer.config.fields import AboveZero, Count, Positive, Share, setting
from official_trainer.export.config import ExportConfig
from official_trainer.optim.config import BatchNormConfig, OptimizationConfig
from official_trainer.writers.config import WandbConfig

Comparison = Literal["higher", "lower"]


def comparison(eval_metric: str, metric_comp: Comparison | None) -> Comparison:
  """Returns which direction is better for a metric.

  Args:
    eval_metric: Name of the metric; parts of nested names are joined by '|'.
    metric_comp: What the config says, or None when it says nothing.

  Returns:
    `metric_comp` when given; else "lower" for names that end in "loss", "higher" for all others.
  """
  if metric_comp is not None:
    return metric_comp
  return "lower" if eval_metric.endswith("loss") else "higher"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCheckpointConfig:
  """One more rule by which the best weights so far are exported."""

  subdir: str = setting("", "Folder of the exported weights, inside model_dir.")
  eval_metric: str = setting("", "Metric to judge by; parts of nested names are joined by '|'.")
  metric_comp: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerConfig:
  """Settings of training, evaluation, checkpoints and summaries.

  A step is one completed update. All intervals are counted in steps and lie on an absolute grid:
  a resumed run acts at the same steps as an uninterrupted one. `best_checkpoints`,
  `checkpoints_at`, `train_epochs`, `async_checkpoint`, `exact_resume`, `recovery_learning_rate_factor`,
  `skip_nonfinite_updates`, `steps_per_closure` and `serial_closures` are additions to Model Garden's fields.
  """

  optimizer_config: OptimizationConfig = setting(
    text="Optimizer, learning rate, warm-up and averaging of the weights.",
    factory=OptimizationConfig,
  )
  train_tf_while_loop: bool = setting(True, "Whether the inner training loop runs inside TensorFlow.")
  train_tf_function: bool = setting(True, "Whether the training step is compiled into a graph.")
  eval_tf_function: bool = setting(True, "Whether the evaluation step is compiled into a graph.")
  eval_tf_while_loop: bool = setting(False, "Whether the evaluation loop runs inside TensorFlow.")
  allow_tpu_summary: bool = setting(
    False,
    "Summaries from inside a TPU program.",
    only_default="Summaries inside a TPU step are not supported yet.",
  )
  steps_per_loop: PositiveSteps = setting(
    1000,
    "Steps of one inner loop, after which metrics are reported. Shortened where an interval would be missed.",
  )
  summary_interval: PositiveSteps = setting(1000, "No effect yet. Reports are made every `steps_per_loop`.")
  checkpoint_interval: PositiveSteps = setting(1000, "Steps between two checkpoints.")
  max_to_keep: Positive = setting(5, "How many of the newest checkpoints stay on disk.")
  continuous_eval_timeout: Count | None = setting(
    3600, "Seconds `continuous_eval` waits for a new checkpoint. None: for ever."
  )
  train_steps: TrainSteps = setting(0, "Steps of the whole run, restarts included.")
  train_epochs: AboveZero | None = setting(
    None, "Length of the whole run in epochs, in place of `train_steps`.", epochs_of="train_steps"
  )
  validation_steps: EvaluationSteps = setting(-1, "Batches of one evaluation. -1: every example once.")
  validation_interval: PositiveSteps = setting(1000, "Steps between two evaluations in `train_and_eval`.")
  best_checkpoint_export_subdir: str = setting(
    "", "Folder inside model_dir for the best weights so far. Empty: none are exported."
  )
  best_checkpoint_eval_metric: str = setting(
    "", "Metric that decides which weights are best; parts of nested names are joined by '|'."
  )
  best_checkpoint_metric_comp: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  loss_upper_bound: AboveZero = setting(
    1e6,
    "A training loss above this counts as diverged from `recovery_begin_steps` on; one that is not finite always does.",
  )
  recovery_begin_steps: Steps = setting(0, "Step from which `loss_upper_bound` is enforced.")
  recovery_max_trials: Annotated[int, limits.Ge(-1)] = setting(
    0,
    "How often a run that has diverged goes back to its last good checkpoint and leaves out the batches of the inner "
    "loop in which it happened, restarts included. 0: a diverged run ends. -1: a diverged loss is let pass.",
  )
  recovery_learning_rate_factor: Share = setting(
    1.0, "Factor on the learning rate for each time the run went back. 1: the learning rate stays."
  )
  skip_nonfinite_updates: bool = setting(
    False,
    "Whether an update with NaN or infinity in a gradient of any replica is left out inside the step: weights, slots, "
    "averages and statistics stay as they were, and the report counts it as `skipped_updates`.",
  )
  validation_summary_subdir: str = setting("validation", "Folder of the evaluation summaries inside model_dir.")
  preemption_on_demand_checkpoint: bool = setting(
    True, "Kept for Model Garden's configs. A run that is asked to stop saves in any case."
  )
  best_checkpoints: tuple[BestCheckpointConfig, ...] = setting(
    (), "More rules for best weights, each with a folder of its own."
  )
  checkpoints_at: tuple[PositiveSteps, ...] = setting(
    (), "Exact steps at which a checkpoint is saved and kept for good, besides the regular ones."
  )
  async_checkpoint: bool = setting(True, "Whether checkpoints are written while training goes on.")
  steps_per_closure: Positive | None = setting(
    None,
    "Steps that a worker of parameter servers does in one call. A stop waits for calls to end, and a lost worker costs "
    "the calls it was at. None: as many as take a tenth of a second, measured once and recorded in the run.",
  )
  serial_closures: bool = setting(
    False,
    "Whether workers of parameter servers work one at a time, for debugging: slow, and exact where the input is "
    "computed from the step.",
  )
  batch_norm: BatchNormConfig = setting(text="Which layers of batch normalisation are frozen.", factory=BatchNormConfig)
  gradient_accumulation_steps: Positive = setting(
    1,
    "In how many parts, one after the other, each replica does its share of a batch, with one update of all: for "
    "batches whose activations do not fit into memory at once. Steps, batches and schedules stay those of 1.",
  )
  log_norms: Literal["none", "total", "groups"] = setting(
    "none",
    "Whether reports hold the mean L2 norms of gradients (over the global batch, before any transformation), of "
    "parameters and of updates: of all together, or of each group as well.",
  )
  exact_resume: bool = setting(False, "Whether what cannot be resumed bit for bit is refused instead of warned about.")
  export: ExportConfig = setting(text="Models that leave the run.", factory=ExportConfig)
  writers: tuple[str, ...] = setting(
    (),
    "Where reports go besides the console, `history.jsonl`, `timings.jsonl` and TensorBoard: `csv`, `wandb`, or names "
    "of writers of one's own.",
  )
  wandb: WandbConfig = setting(text="Settings of the writer `wandb`.", factory=WandbConfig)
  writer_arguments: dict[str, dict[str, Any]] = setting(
    text="Keyword arguments of writers of one's own, by name.", factory=dict
  )
