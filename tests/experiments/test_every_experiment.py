"""Every registered experiment loads, dumps and reloads, and runs four steps where its data are there."""

import os

import pytest
import tensorflow_datasets as tfds

from official_trainer import registry
from official_trainer.config.loading import load
from official_trainer.data import tfds_builder
from official_trainer.experiments import manifest
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from tests import tiny

SHORT = "trainer.train_steps=4,trainer.steps_per_loop=2,trainer.validation_steps=2"
# What makes itself from what is installed; everything else needs files from elsewhere.
SELF_MADE = ("sklearn_digits",)

names = pytest.mark.parametrize("name", sorted(manifest.EXPERIMENTS))


def require_data(config):
  for data in (config.task.train_data, config.task.validation_data):
    if not data.tfds_name or data.tfds_name in SELF_MADE:
      continue
    builder = tfds.builder(data.tfds_name, data_dir=data.tfds_data_dir or None)
    if not tfds_builder.is_prepared(builder):
      pytest.skip(f"{data.tfds_name} is not prepared")


def test_the_table_is_what_is_listed():
  assert set(manifest.EXPERIMENTS) <= set(registry.list_experiments())


@names
def test_its_config_is_complete_and_loads_back_equal(name, tmp_path):
  loaded = load(experiment=name, mode="train_and_eval")
  path = tmp_path / "params.yaml"
  path.write_text(loaded.to_yaml(), "utf-8")
  again = load(experiment=None, config_files=[str(path)], mode="train_and_eval")
  assert again.name == name
  assert again.config == loaded.config
  assert again.to_yaml() == loaded.to_yaml()


@names
def test_it_trains_four_steps_evaluates_and_resumes(name, tmp_path, monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)
  loaded = load(experiment=name, params_override=f"{SHORT},runtime.seed=0")
  require_data(loaded.config)
  result = Runner(loaded, mode="train_and_eval", model_dir=str(tmp_path), quiet=True).run()
  assert result.step == 4
  assert set(result.metrics) == {"accuracy", "validation_loss", "best_accuracy"}
  assert 0 < result.metrics["validation_loss"] < 10
  assert tiny.committed(tmp_path) == [0, 4]
  assert os.listdir(tmp_path / "best_ckpt")
  history = (tmp_path / "history.jsonl").read_bytes()
  again = Runner(loaded, mode="train_and_eval", model_dir=str(tmp_path), quiet=True).run()
  assert again.metrics == result.metrics
  assert (tmp_path / "history.jsonl").read_bytes() == history
