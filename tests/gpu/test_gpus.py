"""The trainer on whatever GPUs this machine has: `pytest -m gpu`. Skipped without any.

Every run is a process of its own, so that the rest of the suite may do without GPUs. The last test runs the same checks
on the CPU: a check that nobody runs would not be one.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.testing.compare import differences
from tests.kill.driver import command

SHORT = (
  "trainer.train_steps=40,trainer.steps_per_loop=10,trainer.checkpoint_interval=20,trainer.validation_interval=40,"
  "runtime.seed=3,runtime.deterministic_ops=true,"
)
MIRRORED = "runtime.distribution_strategy=mirrored"
PRECISIONS = ("float16", "bfloat16")


def num_gpus() -> int:
  tool = shutil.which("nvidia-smi")
  if tool is None:
    return 0
  listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
  return listed.stdout.count("GPU ")


needs_gpus = pytest.mark.skipif(num_gpus() == 0, reason="this machine has no GPU")


def train(model_dir: Path, settings: str, *, visible: str | None) -> None:
  """Trains digits/cnn in a process of its own; raises with its output if it fails."""
  env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
  env |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
  arguments = [*command(model_dir, "digits/cnn_ema", SHORT + settings), "--allow_config_change=trainer.train_steps"]
  done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=600, check=False)
  assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"


def resumes_exactly(folder: Path, settings: str, *, visible: str | None = None) -> None:
  """Trains once as a whole, and once in two parts."""
  train(folder / "whole", settings, visible=visible)
  train(folder / "parts", f"{settings},trainer.train_steps=20", visible=visible)
  train(folder / "parts", settings, visible=visible)
  assert committed_steps(str(folder / "parts"))[-1] == 40
  found = [line for line in differences(folder / "whole", folder / "parts") if "history" not in line]
  assert found == []  # The history of the parts has one more evaluation, at the end of the first.


@needs_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("settings", [MIRRORED, "runtime.distribution_strategy=one_device"])
def test_a_resumed_run_on_gpus_ends_with_the_same_bits(tmp_path, settings):
  resumes_exactly(tmp_path, settings)


@needs_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mixed_precision_trains_and_resumes_on_gpus(tmp_path, precision):
  resumes_exactly(tmp_path, f"{MIRRORED},runtime.mixed_precision_dtype={precision}")


@needs_gpus
@pytest.mark.gpu
def test_compiled_steps_train_and_resume_on_gpus(tmp_path):
  resumes_exactly(tmp_path, f"{MIRRORED},runtime.enable_xla=true")


@needs_gpus
@pytest.mark.gpu
def test_more_gpus_than_there_are_is_refused(tmp_path):
  with pytest.raises(AssertionError, match="asked for 99 GPUs, found"):
    train(tmp_path, f"{MIRRORED},runtime.num_gpus=99", visible=None)


@pytest.mark.slow
def test_the_same_checks_pass_on_two_logical_cpus(tmp_path):
  resumes_exactly(
    tmp_path, f"{MIRRORED},runtime.num_virtual_devices=2,runtime.mixed_precision_dtype=bfloat16", visible="-1"
  )
