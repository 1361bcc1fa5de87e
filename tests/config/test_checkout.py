import subprocess
import sys
from pathlib import Path

from official_trainer.config import checkout

ROOT = Path(__file__).resolve().parents[2]


def run(folder, code, *arguments):
  path = f"import sys; sys.path.append({str(ROOT)!r}); "
  done = subprocess.run([sys.executable, "-c", path + code, *arguments], cwd=folder, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stdout


def tree(folder, *files):
  for name in files:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  return folder / "official_trainer"


def test_a_users_own_package_named_experiments_keeps_its_name(tmp_path):
  package = tmp_path / "experiments"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "mine.py").write_text(
    "from official_trainer import ExperimentConfig, register_experiment\n"
    "@register_experiment('mine/own')\n"
    "def own():\n  return ExperimentConfig()\n"
  )
  code = """
from official_trainer import train
for name in ("mine/own", "digits/cnn"):
  code = train.main(["train", f"--experiment={name}", "--experiment_module=experiments.mine",
                     "--print_config"], train.flags.FlagValues())
  if code: raise SystemExit(code)
import experiments, official_trainer.experiments
print(experiments.__file__)
print(official_trainer.experiments.__file__)
"""
  lines = run(tmp_path, code).splitlines()
  assert lines[-2] == str(package / "__init__.py")
  assert lines[-1] == str(ROOT / "experiments" / "__init__.py")
  assert any(line.startswith("task.model.filters = ") for line in lines)


def test_the_built_in_experiments_are_found_from_anywhere(tmp_path):
  code = "from official_trainer import registry; print(*registry.list_experiments())"
  assert "digits/cnn" in run(tmp_path, code)


def test_only_a_checkout_is_mapped(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
  before = list(sys.meta_path)
  checkout.map_experiments(tree(tmp_path / "a", "official_trainer/x", "setup.py"))
  checkout.map_experiments(tree(tmp_path / "b", "official_trainer/x", "experiments/manifest.py"))
  installed = ("official_trainer/experiments/x", "experiments/manifest.py", "setup.py")
  checkout.map_experiments(tree(tmp_path / "c", *installed))
  assert sys.meta_path == before
  good = ("official_trainer/x", "experiments/manifest.py", "experiments/__init__.py", "setup.py")
  checkout.map_experiments(tree(tmp_path / "d", *good))
  finder = sys.meta_path[-1]
  assert finder.find_spec("experiments") is None
  found = finder.find_spec("official_trainer.experiments")
  assert found.origin == str(tmp_path / "d" / "experiments" / "__init__.py")
