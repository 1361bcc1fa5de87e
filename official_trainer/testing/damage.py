"""Folders that cannot be written to, and files that are not as they were."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def read_only(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Lets nothing be made, changed or removed in a local folder, for real.

  Most users lose the rights to write. Root, whom rights do not bind, gets the folder mounted read-only on itself, which
  takes Linux and the right to mount. Files that are open for writing already stay so.

  Raises:
    RuntimeError: if this process may write everywhere and may not mount: run the test as another user.
  """
  folder = Path(folder).resolve()
  if os.geteuid() != 0:
    with _without_rights(folder):
      yield
    return
  with tempfile.TemporaryDirectory() as aside, contextlib.ExitStack() as mounted:
    # Aside first: what is mounted over the folder is read-only from the beginning.
    _mount("--bind", str(folder), aside)
    mounted.callback(_unmount, aside)
    _mount("-o", "remount,bind,ro", aside)
    _mount("--bind", aside, str(folder))
    mounted.callback(_unmount, str(folder))
    yield


def _unmount(folder: str) -> None:
  # Lazily: a file that is open in it must not keep the folder as it is.
  subprocess.run(["umount", "--lazy", folder], check=True, capture_output=True)


@contextlib.contextmanager
def _without_rights(folder: Path) -> Iterator[None]:
  before: list[tuple[Path, int]] = []
  try:
    for path in sorted([folder, *folder.rglob("*")], reverse=True):  # A folder after what is in it.
      with contextlib.suppress(FileNotFoundError):  # Another thread may be at work in it.
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode & ~0o222)
        before.append((path, mode))
    yield
  finally:
    for path, mode in reversed(before):
      with contextlib.suppress(FileNotFoundError):
        path.chmod(mode)


def _mount(*arguments: str) -> None:
  try:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
  except (OSError, subprocess.CalledProcessError) as error:
    reason = getattr(error, "stderr", None) or error
    raise RuntimeError(
      "read_only() cannot bind root, who may write everywhere, without mounting the folder read-only, and that failed:"
      f" {str(reason).strip()}. Run the test as a user other than root, or where root may mount."
    ) from error


def flip_bit(path: str | os.PathLike[str], *, seed: int = 0) -> tuple[int, int]:
  """Flips one bit of a file, drawn from `seed`. Returns where: the byte, and the bit in it."""
  content = bytearray(Path(path).read_bytes())
  if not content:
    raise ValueError(f"{path} is empty: there is no bit to flip.")
  draw = random.Random(seed)
  place, bit = draw.randrange(len(content)), draw.randrange(8)
  content[place] ^= 1 << bit
  Path(path).write_bytes(content)
  return place, bit


@contextlib.contextmanager
def flipped_bit(path: str | os.PathLike[str], *, seed: int = 0) -> Iterator[tuple[int, int]]:
  """Flips one bit of a file while the body runs, and puts the old content back, also if the file was moved away."""
  content = Path(path).read_bytes()
  where = flip_bit(path, seed=seed)
  try:
    yield where
  finally:
    Path(path).write_bytes(content)
