"""The wheel holds the library and the experiments, and works beside a user's own `experiments`."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("official_trainer", "experiments")


def source_files() -> set[str]:
  """Returns what an installation must hold, as paths below the place of installation."""
  found = set()
  for folder in SOURCES:
    prefix = Path("official_trainer") if folder == "experiments" else Path()
    for path in (ROOT / folder).rglob("*"):
      if path.suffix in (".py", ".yaml"):
        found.add((prefix / path.relative_to(ROOT)).as_posix())
  return found


def copy_of_the_sources(folder: Path) -> Path:
  """Builds leave folders behind and read old ones: each test builds from a clean copy."""
  for name in SOURCES:
    shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
    if (ROOT / name).exists():
      shutil.copy(ROOT / name, folder)
  return folder


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
  process = subprocess.run(
    [str(argument) for argument in arguments],
    cwd=cwd,
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
  return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
  sources = copy_of_the_sources(tmp_path_factory.mktemp("sources"))
  target = tmp_path_factory.mktemp("wheel")
  run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", target, sources, cwd=target)
  (path,) = target.glob("*.whl")
  return path


@pytest.fixture
def user(tmp_path, wheel) -> dict[str, Path]:
  """A user's directory with a package of its own named `experiments`, and the wheel installed."""
  site, home = tmp_path / "site", tmp_path / "home"
  run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
  (home / "experiments").mkdir(parents=True)
  (home / "experiments" / "__init__.py").write_text('OWNER = "the user"\n', "utf-8")
  return {"home": home, "site": site}


def test_every_folder_of_sources_is_a_package():
  folders = {path.parent for name in SOURCES for path in (ROOT / name).rglob("*.py")}
  assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.slow
def test_the_wheel_holds_every_source_and_nothing_else(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
  assert names - {"official_trainer/py.typed"} == source_files()


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel(tmp_path, wheel):
  sources = copy_of_the_sources(tmp_path / "sources")
  code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
  run(sys.executable, "-c", code, cwd=sources)
  (archive,) = (sources / "dist").glob("*.tar.gz")
  with tarfile.open(archive) as tar:
    names = {name.partition("/")[2] for name in tar.getnames()}
  expected = {
    path.removeprefix("official_trainer/") if path.startswith("official_trainer/experiments/") else path
    for path in source_files()
  }
  assert expected <= names


@pytest.mark.slow
def test_an_installed_wheel_finds_its_experiments_beside_a_users_own(user):
  code = (
    "import experiments, official_trainer, official_trainer.experiments.manifest as manifest;"
    "print(experiments.OWNER, official_trainer.__file__, manifest.__file__, sep='|')"
  )
  owner, library, manifest = run(sys.executable, "-c", code, cwd=user["home"], PYTHONPATH=str(user["site"])).split("|")
  assert owner == "the user"
  assert Path(library).is_relative_to(user["site"])
  assert Path(manifest.strip()).is_relative_to(user["site"])


@pytest.mark.slow
def test_the_console_script_of_an_installed_wheel_lists_the_experiments(user):
  script = user["site"] / "bin" / "official-trainer"
  listed = run(sys.executable, script, "--list_experiments", cwd=user["home"], PYTHONPATH=str(user["site"]))
  assert "digits/cnn" in listed


@pytest.mark.slow
def test_an_installed_wheel_trains_digits_cnn(user, tmp_path):
  model_dir = tmp_path / "run"
  run(
    *(sys.executable, "-m", "official_trainer.train"),
    *("--experiment=digits/cnn", "--mode=train_and_eval", f"--model_dir={model_dir}"),
    "--params_override=trainer.train_steps=4,trainer.steps_per_loop=2,trainer.validation_interval=4",
    cwd=user["home"],
    PYTHONPATH=str(user["site"]),
    TFDS_DATA_DIR=str(tmp_path / "data"),
  )
  assert (model_dir / "history.jsonl").read_text("utf-8").count("\n") >= 2
