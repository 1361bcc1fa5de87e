"""The whole of a run: what is learned, how it is trained, where it computes."""

import dataclasses
from typing import Any

from official_trainer.checkpoint.config import InitConfig
from official_trainer.config.fields import setting
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.distribute.config import RuntimeConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
  """Settings of a task. Subclass it with fields of your own:

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class MyTaskConfig(TaskConfig):
    task_class: str = "my_pkg.my_task:MyTask"
    num_classes: int = 10
  """

  init_checkpoint: str = setting("", "Checkpoint whose weights a fresh run starts from. Empty: none.")
  init: InitConfig | None = setting(
    None,
    "Source of a fresh run's weights, matched by names. None: there is none. Not beside `init_checkpoint`.",
  )
  init_backbone: InitConfig | None = setting(
    None, "Second such source, for the variables below its `target_prefix` to which `init` gives nothing."
  )
  model: Any = setting(None, "Settings of the model: a dataclass of the task's own, or None.")
  train_data: DataConfig = setting(text="The training data.", factory=DataConfig)
  validation_data: DataConfig = setting(text="The data of evaluations.", factory=DataConfig)
  evaluation_sets: dict[str, DataConfig] = setting(
    text="More data that every evaluation goes through, by name, each with the settings of `validation_data`: "
    "e.g. another test set, or a part of the training split.",
    factory=dict,
  )
  name: str | None = setting(None, "Name of the task in logs. None: the name of its class.")
  differential_privacy_config: Any = setting(
    None,
    "Gradient noise.",
    only_default="Differential privacy is not supported: make the optimizer in the task.",
  )
  allow_image_summary: bool = setting(
    False, "Pictures in the summaries.", only_default="Image summaries are not supported yet."
  )
  task_class: str = setting("", "The task, as 'module:Class'. Imported when the run is built, not before.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
  """What a registered experiment returns: everything a run is a function of."""

  task: TaskConfig = setting(text="What is learned, from which data.", factory=TaskConfig)
  trainer: TrainerConfig = setting(text="How long, how often, what to keep.", factory=TrainerConfig)
  runtime: RuntimeConfig = setting(text="Devices, precision and the seed.", factory=RuntimeConfig)
