"""Runs `checks.py`: a trainer on workers and a parameter server that are all in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def test_a_trainer_on_parameter_servers_keeps_its_promises(tmp_path):
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
  environment.pop("PYTEST_ADDOPTS", None)
  environment.pop("PYTEST_XDIST_WORKER", None)
  done = subprocess.run(
    [
      *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path}"),
      *("-o", "python_files=checks.py", "tests/parameter_servers/checks.py"),
    ],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-8000:]
