"""Imports point down the layers: the table is in `tests/layers.py`."""

from pathlib import Path

import pytest

from tests import layers

ROOT = Path(__file__).resolve().parent.parent


def write_tree(root: Path, files: dict[str, str]) -> Path:
  for name, text in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    for folder in path.relative_to(root).parents:
      if folder != Path("."):
        (root / folder / "__init__.py").touch()
  return root


def test_the_tree_breaks_no_rule_of_the_design():
  assert layers.violations(ROOT) == []


def test_the_tree_is_read_at_all():
  names = {module.name for module in layers.modules(ROOT)}
  assert {"official_trainer", "official_trainer.train", "official_trainer.experiments"} <= names


GOOD = {
  "official_trainer/__init__.py": "def __getattr__(name):\n  from official_trainer import task\n",
  "official_trainer/config/base.py": "import dataclasses, yaml",
  "official_trainer/config/experiment.py": "from official_trainer.data.config import DataConfig",
  "official_trainer/registry.py": "from official_trainer.experiments import manifest",
  "official_trainer/data/config.py": "from official_trainer.config import base",
  "official_trainer/data/indexed.py": "import tensorflow\nfrom official_trainer.data import source",
  "official_trainer/data/source.py": "from . import config",
  "official_trainer/optim/build.py": "from official.modeling import optimization",
  "official_trainer/writers/orbit_adapter.py": "import orbit",
  "official_trainer/state.py": "from official_trainer import history\nimport tensorflow",
  "official_trainer/history.py": "import json",
  "official_trainer/trainer.py": "import orbit\nfrom official_trainer import state, task",
  "official_trainer/task.py": "import tf_keras",
  "official_trainer/runner.py": "from official_trainer.trainer import Trainer",
  "official_trainer/compat/model_garden.py": ("import official.core\nfrom official_trainer.run.session import Session"),
  "official_trainer/train.py": (
    "from absl import app\nfrom official_trainer.config import loading\n"
    "def main():\n  from official_trainer.runner import Runner"
  ),
  "experiments/manifest.py": "NAMES = {}",
  "experiments/digits/config.py": "from official_trainer.registry import register_experiment",
  "experiments/letters/config.py": "from official_trainer.experiments.digits.config import cnn",
  "experiments/digits/task.py": "import orbit, official\nfrom official_trainer.task import Task",
}


def test_a_tree_that_follows_the_design_passes(tmp_path):
  assert layers.violations(write_tree(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
  ("name", "text", "problem"),
  [
    ("optim/ema.py", "from official_trainer.trainer import Trainer", "point down"),
    ("optim/ema.py", "def f():\n  import official_trainer.loop", "point down"),
    ("optim/ema.py", "import importlib\nimportlib.import_module('official_trainer.loop')", "down"),
    ("optim/ema.py", "from ..data import indexed", "hand it over as an argument"),
    ("actions/best.py", "from official_trainer.trainer import Trainer", "hand it over"),
    ("state.py", "from official_trainer.runner import Runner", "point down"),
    ("state.py", "from official_trainer import Task", "import names from their module"),
    ("state.py", "import orbit", "only loop.py, the trainer's files and one writer adapter"),
    ("writers/second.py", "import orbit.utils", "only one writer adapter"),
    ("compat/trax.py", "import orbit", "only loop.py, the trainer's files and one writer adapter"),
    ("optim/schedules.py", "from official.modeling import optimization", "only compat/ and optim"),
    ("config/loading.py", "def f():\n  import tensorflow as tf", "never imports TensorFlow"),
    ("config/loading.py", "from official_trainer.data import indexed", "loads TensorFlow"),
    ("config/loading.py", "from official_trainer.experiments.digits import config", "never does"),
    ("data/config.py", "import tf_keras", "never imports TensorFlow"),
    ("data/__init__.py", "from official_trainer.data.indexed import X", "loads TensorFlow"),
    ("train.py", "from official_trainer.runner import Runner", "when the run starts"),
    ("train.py", "import tensorflow", "when the run starts"),
    ("experiments_list.py", "", "has no layer"),
    ("data/utils.py", "", "gets a noun"),
    ("config/yaml_helpers.py", "", "gets a noun"),
    ("data/source.py", "import keras", "import tf_keras"),
    ("registry.py", "import experiments.manifest", "official_trainer.experiments"),
    ("../experiments/digits/config.py", "from official_trainer.task import Task", "TensorFlow"),
    (
      "../experiments/digits/config.py",
      "from official_trainer.experiments.digits import task",
      "loads",
    ),
    ("../experiments/common.py", "", "gets a noun"),
  ],
)
def test_each_rule_is_seen_when_broken(tmp_path, name, text, problem):
  root = write_tree(tmp_path, GOOD)
  path = (root / "official_trainer" / name).resolve()
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, "utf-8")
  found = layers.violations(root)
  assert len(found) == 1, found
  assert found[0].startswith(path.relative_to(root).as_posix()) or "adapter" in found[0]
  assert problem in found[0]


def test_an_import_under_type_checking_counts_but_does_not_run_at_load():
  text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import a.b\nimport c"
  found = {item.name: item.at_load for item in layers.imports(text)}
  assert found == {"typing.TYPE_CHECKING": True, "a.b": False, "c": True}


@pytest.mark.parametrize(
  ("text", "needed"),
  [
    ("import tensorflow as tf", True),
    ("def test_it():\n  import tf_keras", True),
    ("from official_trainer.optim.ema import Ema", True),
    ("from official_trainer import state", True),
    ("def test_it(logical_cpus): ...", True),
    ("import pytest\npytestmark = pytest.mark.tensorflow", True),
    ("from official_trainer.data.config import DataConfig", False),
    ("from official_trainer import registry, train", False),
    ("from official_trainer.experiments.digits.config import cnn", False),
    ("text = 'def test_it(logical_cpus): ...'", False),
    ("import json, numpy", False),
  ],
)
def test_a_test_file_is_known_to_need_tensorflow(tmp_path, text, needed):
  root = write_tree(tmp_path, {**GOOD, "official_trainer/optim/ema.py": ""})
  assert layers.needs_tensorflow(text, root) == needed


def test_a_test_that_reaches_tensorflow_through_a_module_of_the_tests_is_found(tmp_path):
  (tmp_path / "tests" / "kill").mkdir(parents=True)
  (tmp_path / "tests" / "kill" / "compare.py").write_text("import tensorflow as tf\n", "utf-8")
  (tmp_path / "tests" / "kill" / "driver.py").write_text("import os\n", "utf-8")
  for line, needed in (("from tests.kill import compare", True), ("from tests.kill import driver", False)):
    assert layers.needs_tensorflow(f"{line}\n", tmp_path) is needed
