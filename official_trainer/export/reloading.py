"""Loads an export again in a process of its own, and asks it for outputs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from official_trainer.errors import ExportRefused
from official_trainer.export.comparison import Tensors

Reload = Callable[[str, Mapping[str, Tensors]], dict[str, dict[str, np.ndarray]]]
"""(folder of a SavedModel, signature -> inputs) -> signature -> outputs."""

_PROGRAM = pathlib.Path(__file__).with_name("reload_program.py")
_LAST_LINES = 15


def reload_in_fresh_process(folder: str, inputs: Mapping[str, Tensors]) -> dict[str, dict[str, np.ndarray]]:
  """Loads a SavedModel by `tf.saved_model.load` in a new process, on the CPU, and calls its signatures.

  The process cannot import this package. It has as many threads for an operation as this one, so that sums are taken in
  the same order.

  Args:
    folder: of the SavedModel.
    inputs: signature -> name -> array.

  Returns:
    signature -> name -> array.

  Raises:
    ExportRefused: if the process fails.
  """
  folder = os.path.abspath(folder) if "://" not in folder else folder
  with tempfile.TemporaryDirectory(prefix="official_trainer-export-") as exchange:
    request = {
      "intra": tf.config.threading.get_intra_op_parallelism_threads(),
      "inter": tf.config.threading.get_inter_op_parallelism_threads(),
      "signatures": {
        signature: _write(exchange, number, arrays) for number, (signature, arrays) in enumerate(inputs.items())
      },
    }
    pathlib.Path(exchange, "request.json").write_text(json.dumps(request), "utf-8")
    done = subprocess.run(
      [sys.executable, "-c", _PROGRAM.read_text("utf-8"), folder, exchange],
      cwd=exchange,
      env=_environment(),
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode != 0:
      said = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
      raise ExportRefused(folder, f"the process that loads it again ended with code {done.returncode}:\n{said}")
    answer = json.loads(pathlib.Path(exchange, "answer.json").read_text("utf-8"))
    return {
      signature: {name: _read(os.path.join(exchange, file), dtype) for name, (file, dtype) in outputs.items()}
      for signature, outputs in answer.items()
    }


def _environment() -> dict[str, str]:
  """Returns the environment of a process of its own that leaves the devices to this one."""
  environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
  environment.pop("TF_CONFIG", None)  # It belongs to no cluster.
  return environment


def _write(exchange: str, number: int, arrays: Tensors) -> dict[str, tuple[str, str]]:
  written = {}
  for place, (name, array) in enumerate(arrays.items()):
    tensor = tf.constant(array)
    file = f"input-{number}-{place}"
    pathlib.Path(exchange, file).write_bytes(tf.io.serialize_tensor(tensor).numpy())
    written[name] = (file, tensor.dtype.name)
  return written


def _read(path: str, dtype: str) -> np.ndarray:
  return tf.io.parse_tensor(pathlib.Path(path).read_bytes(), tf.as_dtype(dtype)).numpy()
