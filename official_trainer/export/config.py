"""What is exported, and when."""

import dataclasses
from typing import Literal

from official_trainer.config.fields import setting

Format = Literal["saved_model", "weights_h5"]
Weights = Literal["averages", "raw"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
  """What `--mode=export` writes, and whether a training does so by itself."""

  on_best: bool = setting(
    False,
    "Whether the weights are exported to `model_dir/best_export` each time they become the best by "
    "`best_checkpoint_eval_metric`. Each time takes as long as importing TensorFlow, since the export is loaded again "
    "in a process of its own.",
  )
  weights: Weights | None = setting(
    None, "Which weights. None: the averages where the run has them (and has begun to average), else the raw ones."
  )
  formats: tuple[Format, ...] = setting(
    ("saved_model",),
    "saved_model: a SavedModel with the task's serving signatures. weights_h5: a Keras file `model.weights.h5`, for "
    "`model.load_weights`, without anything of the optimizer.",
  )
  source: Literal["newest", "best"] = setting(
    "newest",
    "Which checkpoint of model_dir `--mode=export` takes, unless `--checkpoint` names one: the newest, or the best by "
    "`best_checkpoint_eval_metric`.",
  )
  folder: str | None = setting(
    None, "Where `--mode=export` makes its folder, named by the step. None: `export` in model_dir."
  )
