"""How long, how often and what to keep: the settings of the loop."""

import dataclasses
from typing import Annotated, Literal

import annotated_types as limits

from official_trainer.config.fields import AboveZero, Count, Positive, Share, setting
from official_trainer.inspect.config import GraphDump, ProfileConfig
from official_trainer.optim.config import OptimizationConfig

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
  `checkpoints_at`, `async_checkpoint`, `exact_resume`, `recovery_learning_rate_factor`,
  `skip_nonfinite_updates`, `steps_per_closure`, `serial_closures`, `inspect_model`, `dump_graphs` and `profile` are
  additions to Model Garden's fields.
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
  steps_per_loop: Positive = setting(
    1000,
    "Steps of one inner loop, after which metrics are reported. Shortened where an interval would be missed.",
  )
  summary_interval: Positive = setting(1000, "No effect yet. Reports are made every `steps_per_loop`.")
  checkpoint_interval: Positive = setting(1000, "Steps between two checkpoints.")
  max_to_keep: Positive = setting(5, "How many of the newest checkpoints stay on disk.")
  continuous_eval_timeout: Count | None = setting(
    3600, "Seconds `continuous_eval` waits for a new checkpoint. None: for ever."
  )
  train_steps: Count = setting(0, "Steps of the whole run, restarts included.")
  validation_steps: Annotated[int, limits.Ge(-1)] = setting(-1, "Batches of one evaluation. -1: every example once.")
  validation_interval: Positive = setting(1000, "Steps between two evaluations in `train_and_eval`.")
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
  recovery_begin_steps: Count = setting(0, "Step from which `loss_upper_bound` is enforced.")
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
  checkpoints_at: tuple[Positive, ...] = setting(
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
  exact_resume: bool = setting(False, "Whether what cannot be resumed bit for bit is refused instead of warned about.")
  inspect_model: bool = setting(
    False,
    "Whether the floating point operations of the forward pass and of a step, and the memory that a step takes, are "
    "estimated and logged once, after the first inner loop of a new run. Traces forward pass and step once more.",
  )
  dump_graphs: GraphDump = setting(
    "none",
    "What is written to `model_dir/graphs` at each start, after its first inner loop (step 1 in a new run), of the "
    "forward pass and of the update. text: the programs as XLA reads them and as it compiles them, or TensorFlow's "
    "graphs where XLA cannot compile them. all: drawings of the compiled programs as well, which are large.",
  )
  profile: ProfileConfig = setting(text="Recording of some steps for TensorBoard's profiler.", factory=ProfileConfig)
