"""What answers at once must not import what takes seconds: asserted by name, not by time."""

import subprocess
import sys

import pytest

HEAVY = ("tensorflow", "tf_keras", "keras", "official", "orbit", "tensorflow_datasets", "pandas",
         "matplotlib", "numpy", "sklearn")  # fmt: skip


def heavy_after(program, *forbidden):
  names = (*HEAVY, *forbidden)
  report = f"\nimport sys\nprint([n for n in {names!r} if n in sys.modules], file=sys.stderr)"
  done = subprocess.run([sys.executable, "-c", program + report], capture_output=True, text=True, check=True)
  return done.stderr.splitlines()[-1]


MODULES = [
  "official_trainer",
  "official_trainer.errors",
  "official_trainer.registry",
  "official_trainer.testing",
  "official_trainer.train",
  "official_trainer.launcher",
  "official_trainer.config.loading",
  "official_trainer.config.describe",
  "official_trainer.config.foreign",
  "official_trainer.data.config",
  "official_trainer.optim.config",
  "official_trainer.distribute.config",
  "official_trainer.experiments.manifest",
  "official_trainer.experiments.digits.config",
  "official_trainer.experiments.fashion_mnist.config",
]

ANSWERS = [
  ["--help"],
  ["--list_experiments"],
  ["--experiment=digits/cnn", "--print_config"],
  ["--experiment=digits/cnn", "--gin_params=trainer.train_steps = 1", "--print_config"],
  ["--experiment=digits/cnm"],
  ["--experiment=digits/cnn", "--params_override=trainer.train_steps=abc"],
  ["--no_such_flag"],
]


def test_importing_the_config_layer_imports_nothing_heavy():
  assert heavy_after(f"import {', '.join(MODULES)}", "pydantic", "gin", "rich") == "[]"


def test_answers_without_a_run_import_nothing_heavy():
  program = f"""
from official_trainer import train
for arguments in {ANSWERS!r}:
  train.main(["train", *arguments], train.flags.FlagValues())
"""
  assert heavy_after(program) == "[]"


def test_public_names_are_loaded_when_first_used():
  program = "import official_trainer as t; t.ExperimentConfig(); t.register_experiment"
  assert heavy_after(program) == "[]"


def test_every_public_name_has_a_home():
  import official_trainer

  assert sorted(official_trainer.__all__) == sorted(official_trainer._HOMES)
  assert dir(official_trainer) == sorted(official_trainer.__all__)
  with pytest.raises(AttributeError, match="has no attribute 'Trianer'"):
    _ = official_trainer.Trianer
