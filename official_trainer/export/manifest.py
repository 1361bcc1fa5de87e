"""`export.json`: what an export is, in the export."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_trainer.export.saved_model import Signature

FILE = "export.json"
FORMAT_VERSION = 1
_CHUNK_BYTES = 1 << 22


def describe(folder: str, *, step: int, weights: str, signatures: Mapping[str, Signature], **facts: Any) -> str:
  """Returns the text of `export.json` for a folder whose files are complete.

  Args:
    folder: the export.
    step: number of completed updates of the weights.
    weights: "averages" or "raw".
    signatures: what it offers.
    **facts: what else to record.
  """
  content = {
    "format_version": FORMAT_VERSION,
    "step": step,
    "weights": weights,
    "signatures": {
      name: {"inputs": _specs(signature.inputs), "outputs": _specs(signature.outputs)}
      for name, signature in signatures.items()
    },
    "files": {name: {"size": size, "sha256": digest} for name, size, digest in _digests(folder)},
    **facts,
  }
  return json.dumps(content, indent=2, sort_keys=True) + "\n"


def step_of(folder: str) -> int | None:
  """Returns the step of the weights in an export; None if the folder is none."""
  path = os.path.join(folder, FILE)
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path) as file:
    return int(json.loads(file.read())["step"])


def _specs(specs: Mapping[str, tf.TensorSpec]) -> dict[str, Any]:
  return {
    name: {"dtype": spec.dtype.name, "shape": None if spec.shape.rank is None else spec.shape.as_list()}
    for name, spec in specs.items()
  }


def _digests(folder: str) -> Iterator[tuple[str, int, str]]:
  for parent, _, names in tf.io.gfile.walk(folder):
    for name in names:
      path = os.path.join(parent, name)
      digest, size = hashlib.sha256(), 0
      with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
          digest.update(chunk)
          size += len(chunk)
      yield path[len(folder) :].lstrip("/"), size, digest.hexdigest()
