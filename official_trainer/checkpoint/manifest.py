"""The manifest: what makes a set of checkpoint files a checkpoint. Written last, by rename."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_trainer.errors import BrokenCheckpoint

FORMAT_VERSION = 1
_SUFFIX = ".manifest.json"
_CHUNK_BYTES = 1 << 22
_NAME = re.compile(r"ckpt-(\d+)\.manifest\.json$")


def checkpoint_prefix(directory: str, step: int) -> str:
  """Returns DIRECTORY/ckpt-STEP, to which TensorFlow adds `.index` and `.data-*`."""
  return os.path.join(directory, f"ckpt-{step}")


def manifest_path(prefix: str) -> str:
  return prefix + _SUFFIX


def data_files(prefix: str) -> list[str]:
  """Lists the files that TensorFlow wrote for this prefix."""
  directory, stem = os.path.split(prefix)
  starts = (f"{stem}.index", f"{stem}.data-")
  # Listed, not globbed: a folder's name may hold characters of a pattern.
  return sorted(os.path.join(directory, name) for name in tf.io.gfile.listdir(directory) if name.startswith(starts))


def committed_steps(directory: str) -> list[int]:
  """Lists the steps in ascending order that have a manifest."""
  if not tf.io.gfile.isdir(directory):
    return []
  matches = (_NAME.match(os.path.basename(name.rstrip("/"))) for name in tf.io.gfile.listdir(directory))
  return sorted(int(match.group(1)) for match in matches if match)


def describe(prefix: str, step: int, facts: Mapping[str, Any]) -> str:
  """Returns the manifest's text for files that are complete on disk.

  Args:
    prefix: the checkpoint's prefix.
    step: number of completed updates.
    facts: what else to record (seed, versions, number of replicas).
  """
  files = {os.path.basename(path): {"size": size, "sha256": digest} for path, size, digest in _digests(prefix)}
  content = {"format_version": FORMAT_VERSION, "step": step, "finite": True, "files": files, **facts}
  return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read(prefix: str) -> dict[str, Any]:
  """Returns the manifest of `prefix`, whose files may be broken."""
  with tf.io.gfile.GFile(manifest_path(prefix)) as file:
    return dict(json.loads(file.read()))


def verify(prefix: str) -> dict[str, Any]:
  """Reads the manifest of `prefix` and compares sizes and checksums of its files.

  Returns:
    The manifest.

  Raises:
    BrokenCheckpoint: if the manifest cannot be read, or a file is missing, truncated or altered.
  """
  try:
    manifest = read(prefix)
    expected = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
  except (tf.errors.OpError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise BrokenCheckpoint(f"{manifest_path(prefix)} cannot be read: {error}") from error
  found = {os.path.basename(path): (size, digest) for path, size, digest in _digests(prefix)}
  for name in sorted(expected.keys() | found.keys()):
    if name not in found:
      raise BrokenCheckpoint(f"{name} is missing.")
    if name not in expected:
      raise BrokenCheckpoint(f"{name} is not in the manifest.")
    if found[name][0] != expected[name][0]:
      raise BrokenCheckpoint(f"{name} has {found[name][0]} bytes; the manifest says {expected[name][0]}.")
    if found[name][1] != expected[name][1]:
      raise BrokenCheckpoint(f"{name} has another checksum than its manifest.")
  return manifest


def _digests(prefix: str) -> Iterator[tuple[str, int, str]]:
  for path in data_files(prefix):
    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
      while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    yield path, size, digest.hexdigest()
