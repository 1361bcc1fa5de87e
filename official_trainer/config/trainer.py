"""How long, how often and what to keep: the settings of the loop."""

import dataclasses
from typing import Annotated, Any, Literal

import annotated_types as limits

from official_trainer.actions.config import EarlyStopConfig, StopAtConfig
from official_trainer.checkpoint.config import BestCheckpointConfig, Ties
from official_trainer.config.comparison import Comparison
from official_trainer.config.comparison import comparison as comparison
from official_trainer.config.durations import EvaluationSteps, PositiveSteps, Steps, TrainSteps
from official_trainer.config.fields import AboveZero, Count, NonNegative, Positive, Share, setting
from official_trainer.export.config import ExportConfig
from official_trainer.inspect.config import GraphDump, ProfileConfig
from official_trainer.optim.config import BatchNormConfig, OptimizationConfig, ScheduleConfig
from official_trainer.writers.config import WandbConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerConfig:
  """Settings of training, evaluation, checkpoints and summaries.

  A step is one completed update. All intervals are counted in steps and lie on an absolute grid:
  a resumed run acts at the same steps as an uninterrupted one. Most fields are Model Garden's; the rest are additions.
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
  first_loop_steps: PositiveSteps | None = setting(
    None,
    "Steps of the run's first inner loop, with a report of its own: 1 shows curves and learning rate at once. Later "
    "reports stay at multiples of `steps_per_loop`. None: as long as all others.",
  )
  evaluate_first_loop: bool = setting(False, "Whether `train_and_eval` also evaluates after `first_loop_steps`.")
  validation_steps: EvaluationSteps = setting(-1, "Batches of one evaluation. -1: every example once.")
  validation_interval: PositiveSteps = setting(1000, "Steps between two evaluations in `train_and_eval`.")
  recreate_iterator_for_each_eval: bool = setting(
    True,
    "Whether each evaluation begins at the first batch. False: it takes the `validation_steps` batches after those of "
    "the evaluation before, and goes round at the end of the set.",
  )
  gather_evaluation_outputs: bool = setting(
    True,
    "Whether evaluations hand what their steps return to the task (`aggregate_logs`). False: only the loss and metrics "
    "that are sums on the devices are reported, and no output leaves a device.",
  )
  best_checkpoint_export_subdir: str = setting(
    "", "Folder inside model_dir for the best weights so far. Empty: none are exported."
  )
  best_checkpoint_eval_metric: str = setting(
    "", "Metric that decides which weights are best; parts of nested names are joined by '|'."
  )
  best_checkpoint_metric_comp: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  best_checkpoint_top_k: Positive = setting(
    1, "How many of the best weights stay in the folder; its record ranks them."
  )
  best_checkpoint_min_gain: NonNegative = setting(
    0.0, "By how much a value must be better than the one whose place it takes, in units of the metric."
  )
  best_checkpoint_ties: Ties = setting(
    "first", "Which of equal values ranks higher: the first one stays the best, or the last one becomes it."
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
  early_stop: EarlyStopConfig | None = setting(
    None, "Ends the run when evaluations have stopped getting better. None: never."
  )
  stop_at: StopAtConfig | None = setting(None, "Ends the run at the evaluation that reaches a target. None: never.")
  max_wall_secs: AboveZero | None = setting(
    None,
    "Seconds of wall time, over all starts of the run as far as time.json knows, after which it ends with the inner "
    "loop it is in. None: no limit.",
  )
  checkpoints_at: tuple[PositiveSteps, ...] = setting(
    (), "Exact steps at which a checkpoint is saved and kept for good, besides the regular ones."
  )
  async_checkpoint: bool = setting(True, "Whether checkpoints are written while training goes on.")
  save_checkpoints: bool = setting(
    True, "Whether checkpoints and best weights are saved. Without, a run that is started again begins anew."
  )
  write_summaries: bool = setting(
    True, "Whether curves are written: TensorBoard's files, `history.jsonl`, `timings.jsonl`, `history.png`."
  )
  trainer_class: str = setting("", "A subclass of Trainer to use, as 'module:Class'. Empty: Trainer itself.")
  runner: str = setting(
    "",
    "What runs the experiment in place of the loop: 'module:function', or a registered name. Also set by --runner. "
    "Empty: the loop.",
  )
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
  schedules: dict[str, ScheduleConfig] = setting(
    text="Numbers that move during the run, by name: 'learning_rate_factor', 'optimizer/weight_decay', "
    "'groups/<group>/lr_multiplier', 'gradient_transforms/clip_by_global_norm/norm', 'ema/average_decay', "
    "'model/<layer>/rate' and others (docs/how_to/schedules.md).",
    factory=dict,
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
  compress_graphs: bool = setting(False, "Whether the files of `dump_graphs` are compressed by gzip.")
  profile: ProfileConfig = setting(text="Recording of some steps for TensorBoard's profiler.", factory=ProfileConfig)
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
