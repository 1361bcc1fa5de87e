"""Settings of the digits experiments. Imports no TensorFlow."""

import dataclasses

from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.fields import Fraction, Positive, setting
from official_trainer.config.trainer import TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.optim.config import (
  CosineLrConfig,
  EmaConfig,
  LrConfig,
  OptimizationConfig,
  OptimizerConfig,
)

TRAIN_EXAMPLES = 1437
"""The first 1,437 images; the other 360 are by writers that are not among these."""

_TRAIN_STEPS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class CnnConfig:
  """A small network: 3x3 convolutions with batch normalisation, then a dense layer."""

  filters: tuple[Positive, ...] = setting(
    (32, 64, 64), "Channels of each convolution. The image is halved after the second one."
  )
  dropout_rate: Fraction = setting(0.3, "Share of the features dropped before the dense layer.")
  batchnorm_synchronized: bool = setting(
    True,
    "Whether batch normalisation takes its statistics over all replicas. With it, any number of "
    "replicas gives the same losses.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig(TaskConfig):
  """Digits from a TFDS set, classified by a convolutional network."""

  task_class: str = setting("official_trainer.experiments.digits.task:DigitsTask", "The task.")
  model: CnnConfig = setting(text="The network.", factory=CnnConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlpConfig:
  """Dense layers with ReLU."""

  hidden_units: tuple[Positive, ...] = setting((256, 256), "Units of each hidden layer.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsMlpConfig(TaskConfig):
  """Digits from a plain `tf.data.Dataset`, classified by dense layers. The smallest example."""

  task_class: str = setting("official_trainer.experiments.digits.task:DigitsMlpTask", "The task.")
  model: MlpConfig = setting(text="The network.", factory=MlpConfig)


def cnn() -> ExperimentConfig:
  """A convolutional network on the digits: about 98 % of new writers' digits in under a minute."""
  return ExperimentConfig(task=_tfds_digits(), trainer=_trainer())


def cnn_ema() -> ExperimentConfig:
  """The same with averaged weights in evaluation and in the best export."""
  ema = EmaConfig(average_decay=0.99, dynamic_decay=True)
  return ExperimentConfig(task=_tfds_digits(), trainer=_trainer(ema))


def mlp() -> ExperimentConfig:
  """Dense layers on the digits, read through plain `tf.data`."""
  task = DigitsMlpConfig(
    train_data=DataConfig(
      global_batch_size=64, is_training=True, shuffle_buffer_size=TRAIN_EXAMPLES, num_examples=TRAIN_EXAMPLES
    ),
    validation_data=DataConfig(global_batch_size=64, is_training=False, drop_remainder=False),
  )
  return ExperimentConfig(task=task, trainer=_trainer())


def _tfds_digits() -> DigitsConfig:
  return DigitsConfig(
    train_data=DataConfig(tfds_name="sklearn_digits", tfds_split="train", global_batch_size=64, is_training=True),
    validation_data=DataConfig(
      tfds_name="sklearn_digits",
      tfds_split="test",
      global_batch_size=64,
      is_training=False,
      drop_remainder=False,
    ),
  )


def _trainer(ema: EmaConfig | None = None) -> TrainerConfig:
  return TrainerConfig(
    train_steps=_TRAIN_STEPS,
    steps_per_loop=50,
    summary_interval=50,
    checkpoint_interval=100,
    validation_interval=100,
    best_checkpoint_export_subdir="best_ckpt",
    best_checkpoint_eval_metric="accuracy",
    optimizer_config=OptimizationConfig(
      optimizer=OptimizerConfig(type="adam"),
      learning_rate=LrConfig(
        type="cosine",
        cosine=CosineLrConfig(initial_learning_rate=2e-3, decay_steps=_TRAIN_STEPS),
      ),
      ema=ema,
    ),
  )
