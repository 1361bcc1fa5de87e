"""Settings of the Fashion-MNIST experiment. Imports no TensorFlow."""

import dataclasses

from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.fields import setting
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.experiments.digits.config import CnnConfig
from official_trainer.optim.config import (
  CosineLrConfig,
  LrConfig,
  OptimizationConfig,
  OptimizerConfig,
)

_TRAIN_STEPS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class FashionMnistConfig(TaskConfig):
  """Clothes from the TFDS set `fashion_mnist`, classified by a convolutional network."""

  task_class: str = setting("official_trainer.experiments.fashion_mnist.task:FashionMnistTask", "The task.")
  model: CnnConfig = setting(text="The network.", factory=CnnConfig)


def cnn() -> ExperimentConfig:
  """A convolutional network on the 60,000 images of Fashion-MNIST."""
  task = FashionMnistConfig(
    train_data=DataConfig(tfds_name="fashion_mnist", tfds_split="train", global_batch_size=128, is_training=True),
    validation_data=DataConfig(
      tfds_name="fashion_mnist",
      tfds_split="test",
      global_batch_size=128,
      is_training=False,
      drop_remainder=False,
    ),
  )
  trainer = TrainerConfig(
    train_steps=_TRAIN_STEPS,
    steps_per_loop=100,
    summary_interval=100,
    checkpoint_interval=500,
    validation_interval=500,
    best_checkpoint_export_subdir="best_ckpt",
    best_checkpoint_eval_metric="accuracy",
    optimizer_config=OptimizationConfig(
      optimizer=OptimizerConfig(type="adam"),
      learning_rate=LrConfig(
        type="cosine",
        cosine=CosineLrConfig(initial_learning_rate=2e-3, decay_steps=_TRAIN_STEPS),
      ),
    ),
  )
  return ExperimentConfig(task=task, trainer=trainer)
