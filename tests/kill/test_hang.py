"""A run that hangs ends by itself, says where it hung, and goes on when started again."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]


def command(*flags):
  return [sys.executable, "-m", "official_trainer.train", *flags]


def test_a_hang_inside_the_compiled_loop_ends_with_code_43_stacks_and_a_bundle(tmp_path):
  hang = tmp_path / "hang"
  hang.touch()
  arguments = command(
    "--experiment=hanging",
    "--experiment_module=tests.kill.hanging",
    "--mode=train",
    f"--model_dir={tmp_path / 'run'}",
  )
  impatient = [*arguments, "--params_override=runtime.hang_secs=5"]
  environment = {**os.environ, "HANG": str(hang), "PYTHONPATH": os.getcwd()}
  done = subprocess.run(impatient, env=environment, capture_output=True, text=True, timeout=240, check=False)
  assert done.returncode == 43, done.stderr
  assert "hang: nothing has moved for" in done.stderr
  assert "maybe_hang" in done.stderr
  # The step counts before its update is done: the two run side by side.
  (path,) = (tmp_path / "run" / "crashes").iterdir()
  assert path.name in ("step-5.json", "step-6.json")
  assert json.loads(path.read_text("utf-8"))["kind"] == "hang"
  hang.unlink()
  again = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=240, check=False)
  assert again.returncode == 0, again.stderr
  assert "resumed at step 4" in again.stderr


def test_sigterm_before_the_run_has_begun_asks_for_a_restart(tmp_path):
  process = subprocess.Popen(
    command("--experiment=digits/mlp", "--mode=train", f"--model_dir={tmp_path / 'run'}"),
    stderr=subprocess.PIPE,
    text=True,
  )
  # The settings are shown just before TensorFlow is imported, which takes seconds.
  while "settings that are not defaults" not in process.stderr.readline():
    pass
  process.send_signal(signal.SIGTERM)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 42, errors
  assert "SIGTERM before the run began" in errors
