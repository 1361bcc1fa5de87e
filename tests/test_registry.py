import subprocess
import sys

import pytest

from official_trainer import registry
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.errors import ConfigError


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch):
  monkeypatch.setattr(registry, "_registered", {})
  monkeypatch.setattr(registry, "_for_tpu", set())
  monkeypatch.setattr(sys, "path", list(sys.path))


def test_listing_and_looking_up_import_only_what_they_must():
  program = """
import sys
from official_trainer import registry
ours = lambda: sorted(n for n in sys.modules if n.startswith("official_trainer.experiments."))
print(*registry.list_experiments()); print(*ours())
registry.get_experiment("digits/cnn"); print(*ours())
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  names, listed, looked_up = done.stdout.splitlines()
  assert {"digits/cnn", "digits/cnn_ema", "digits/mlp", "fashion_mnist/cnn"} <= set(names.split())
  assert listed.split() == ["official_trainer.experiments.manifest"]
  assert looked_up.split() == [
    "official_trainer.experiments.digits",
    "official_trainer.experiments.digits.config",
    "official_trainer.experiments.manifest",
  ]


@pytest.mark.parametrize("name", registry.list_experiments())
def test_every_name_of_the_table_makes_a_config(name):
  assert isinstance(registry.get_experiment(name)(), ExperimentConfig)


def test_a_decorated_function_is_found_and_returned_as_it_is():
  @registry.register_experiment("mine/a")
  def a():
    return ExperimentConfig()

  assert registry.get_experiment("mine/a") is a
  assert "mine/a" in registry.list_experiments()


def test_an_unknown_name_gets_the_nearest_ones_and_how_to_list():
  with pytest.raises(ConfigError, match=r"no experiment 'digits/cn'.*Did you mean 'digits/cnn'") as e:
    registry.get_experiment("digits/cn")
  assert "--list_experiments" in str(e.value)


def test_a_name_used_twice_is_refused_with_both_places():
  registry.register_experiment("mine/a")(lambda: ExperimentConfig())
  with pytest.raises(ConfigError, match="'mine/a': is registered twice") as raised:
    registry.register_experiment("mine/a")(lambda: ExperimentConfig())
  assert str(raised.value).count("test_registry.py:") == 2


def test_a_built_in_name_cannot_be_taken():
  with pytest.raises(ConfigError, match=r"digits\.config:cnn \(built in\).*test_registry\.py"):
    registry.register_experiment("digits/cnn")(lambda: ExperimentConfig())


def test_the_same_function_may_be_registered_again():
  def a():
    return ExperimentConfig()

  registry.register_experiment("mine/a")(a)
  registry.register_experiment("mine/a")(a)


def test_a_users_module_is_found_in_the_working_directory(tmp_path, monkeypatch):
  (tmp_path / "my_own_module.py").write_text(
    "from official_trainer import ExperimentConfig, register_experiment\n"
    "@register_experiment('mine/b')\ndef b():\n  return ExperimentConfig()\n"
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
  assert registry.get_experiment("mine/b", ["my_own_module"])() == ExperimentConfig()


def test_a_module_that_is_not_there_is_a_config_error(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=f"no module 'nowhere' .asked for: 'nowhere.b'.*\n.*{tmp_path}"):
    registry.import_modules(["nowhere.b"])
  with pytest.raises(ConfigError, match="is a path; give the name of a module: a.b"):
    registry.import_modules(["./a/b.py"])


def test_an_error_inside_a_users_module_is_left_as_it_is(tmp_path, monkeypatch):
  (tmp_path / "my_broken_module.py").write_text("import not_installed_anywhere\n")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
    registry.import_modules(["my_broken_module"])


def test_an_experiment_says_itself_that_it_is_for_a_tpu():
  def a():
    return ExperimentConfig()

  assert "digits/cnn" in registry.list_experiments_for_tpu()
  registry.register_experiment("mine/a", for_tpu=True)(a)
  assert "mine/a" in registry.list_experiments_for_tpu()
  registry.register_experiment("mine/a")(a)
  assert "mine/a" not in registry.list_experiments_for_tpu()
  assert set(registry.list_experiments_for_tpu()) <= set(registry.list_experiments())
