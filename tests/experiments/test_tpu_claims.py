"""Every experiment that claims to run on a TPU is checked for it."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from official_trainer import registry
from official_trainer.config.loading import load
from official_trainer.data import tfds_builder
from official_trainer.data.arrays import ArraySource
from official_trainer.experiments.digits import task as digits
from official_trainer.run.named_classes import resolve_task_class
from official_trainer.runner import Runner

SMALL = "runtime.seed=0,task.train_data.global_batch_size=8,task.validation_data.global_batch_size=8"
SELF_MADE = ("sklearn_digits", "")


@pytest.mark.parametrize("name", registry.list_experiments_for_tpu())
def test_nothing_is_found_that_a_tpu_would_refuse(name, monkeypatch):
  loaded = load(experiment=name, params_override=SMALL, mode="check_tpu")
  data = loaded.config.task.train_data
  if data.tfds_name not in SELF_MADE and not tfds_builder.is_prepared(tfds.builder(data.tfds_name)):
    # Shapes and types are those of the real data.
    shape = resolve_task_class(loaded.config.task.task_class).image_shape
    images = {"image": np.zeros([20, *shape], np.uint8), "label": np.zeros([20], np.int64)}
    monkeypatch.setattr(digits, "tfds_source", lambda params: ArraySource(images))
  report = Runner(loaded, mode="check_tpu", model_dir="").check_tpu()
  assert report.is_clean, str(report)
  assert report.compiled == ("training", "evaluation")
