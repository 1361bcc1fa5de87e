"""What every test process agrees on, set before TensorFlow can be imported.

TensorFlow is imported by the tests that need it, never here. `--tensorflow=without` collects only
the others, and fails if one of them brings it in after all.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests import finite_guard, layers

LOGICAL_CPUS = 4

# No test leaves the machine, uses a GPU that only some machines have, or opens a window.
os.environ.setdefault("GCE_METADATA_IP", "127.0.0.1:9")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

_FOLDERS = pytest.StashKey[list[str]]()


def pytest_addoption(parser):
  parser.addoption(
    "--tensorflow",
    choices=("with", "without", "both"),
    default="both",
    help="which test files to collect: those that import TensorFlow, those that do not, or both",
  )


def pytest_configure(config):
  # Data sets that tests prepare go to a folder of this process, which xdist workers do not share.
  config.stash[_FOLDERS] = []
  if "TFDS_DATA_DIR" not in os.environ or hasattr(config, "workerinput"):
    folder = tempfile.mkdtemp(prefix="official-trainer-tests-")
    config.stash[_FOLDERS].append(folder)
    os.environ["TFDS_DATA_DIR"] = folder


def pytest_unconfigure(config):
  for folder in config.stash[_FOLDERS]:
    shutil.rmtree(folder, ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config):
  wanted = config.getoption("--tensorflow")
  if wanted == "both" or collection_path.suffix != ".py":
    return None
  needed = layers.needs_tensorflow(collection_path.read_text("utf-8"), config.rootpath)
  return needed != (wanted == "with") or None


def pytest_runtest_setup():
  if "tensorflow" in sys.modules:
    configure_logical_cpus()
    finite_guard.install()


def pytest_sessionfinish(session):
  if session.config.getoption("--tensorflow") == "without" and "tensorflow" in sys.modules:
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    print("\nA test collected with --tensorflow=without imported TensorFlow.", file=sys.stderr)


def configure_logical_cpus() -> list[str]:
  """Splits the CPU into four logical devices, once a process, and returns their names.

  Raises:
    RuntimeError: if TensorFlow was started before with fewer.
  """
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  configured = tf.config.get_logical_device_configuration(cpu) or []
  if len(configured) < LOGICAL_CPUS:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS)
  return [f"/cpu:{index}" for index in range(LOGICAL_CPUS)]


@pytest.fixture(scope="session")
def logical_cpus() -> list[str]:
  """The names of four logical CPU devices, so that 1, 2 and 4 replicas share one process."""
  return configure_logical_cpus()
