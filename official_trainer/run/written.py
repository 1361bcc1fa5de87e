"""What a run writes besides its checkpoints: the writers of its files, and the facts in its manifests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.config.checks import TRAINING_MODES
from official_trainer.writers.base import Writer
from official_trainer.writers.dispensable import Dispensable
from official_trainer.writers.jsonl import HistoryWriter, TimingsWriter
from official_trainer.writers.tensorboard import TensorBoardWriter


def file_writers(
  model_dir: str, mode: str, validation_subdir: str, evaluation_sets: Sequence[str] = ()
) -> list[Writer]:
  """Returns the writers of a mode's files. Only a training process owns history.jsonl."""
  inside = "eval/" if mode == "eval" else ""
  sets = {name: f"{inside}{name}" for name in evaluation_sets}
  tensorboard = TensorBoardWriter(model_dir, {"train": "train", "validation": validation_subdir, **sets})
  if mode in TRAINING_MODES:
    return [
      HistoryWriter(os.path.join(model_dir, "history.jsonl")),
      tensorboard,
      TimingsWriter(os.path.join(model_dir, "timings.jsonl")),
    ]
  # The product of an evaluation are numbers; who may only read the folder gets them without curves.
  return [Dispensable(tensorboard)]


def manifest_facts(seed: int, strategy: tf.distribute.Strategy) -> dict[str, Any]:
  """Returns what every manifest records besides its files."""
  return {
    "seed": seed,
    "num_replicas": strategy.num_replicas_in_sync,
    "versions": {
      "python": ".".join(map(str, sys.version_info[:3])),
      "tensorflow": tf.__version__,
      "tf_keras": tf_keras.__version__,
    },
  }
