"""Prepares a TFDS data set in ArrayRecord form: `python -m official_trainer.data.prepare NAME`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from official_trainer.errors import ConfigError

if TYPE_CHECKING:
  import tensorflow_datasets as tfds


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the process's exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m official_trainer.data.prepare",
    description="Prepares a TFDS data set in ArrayRecord form.",
  )
  parser.add_argument("name", metavar="NAME", help="TFDS name, e.g. mnist or sklearn_digits")
  parser.add_argument("--source", metavar="DIR", default="", help="folder with the set's original files; no network")
  parser.add_argument(
    "--data_dir",
    metavar="DIR",
    default="",
    help="folder of prepared sets (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)",
  )
  arguments = parser.parse_args(argv)
  try:
    print(prepare_set(arguments.name, source=arguments.source, data_dir=arguments.data_dir))
  except ConfigError as error:
    print("\n".join(str(problem) for problem in error.problems), file=sys.stderr)
    return 2
  except OSError as error:
    hint = "" if arguments.source else " Without network: --source=DIR with its original files."
    print(f"{arguments.name} could not be prepared: {error}.{hint}", file=sys.stderr)
    return 1
  return 0


def prepare_set(name: str, *, source: str = "", data_dir: str = "") -> str:
  """Prepares a set unless it is there.

  Args:
    name: TFDS name.
    source: folder with the set's original files, or empty to download them.
    data_dir: folder of prepared sets; empty for TFDS's own.

  Returns:
    One line: what is now where.

  Raises:
    ConfigError: no such set; files are missing; it is there in a form without random access.
    OSError: the files could not be fetched or written.
  """
  # Importing TFDS takes a while, and preparing imports TensorFlow: `--help` should not wait for it.
  from official_trainer.data import tfds_builder

  builder = tfds_builder.open_builder(name, data_dir)
  verb = "is already"
  if not tfds_builder.is_prepared(builder):
    verb = "is now"
    with _files_from(builder, source) if source else contextlib.nullcontext():
      builder = tfds_builder.prepare(name, data_dir)
  formats = tfds_builder.formats(builder)
  if tfds_builder.ARRAY_RECORD not in formats:
    raise ConfigError.of(
      "--data_dir",
      f"{builder.data_dir} holds {name} as {', '.join(sorted(formats))}, without random access.\n"
      "Give another folder, or remove that one.",
    )
  splits = ", ".join(f"{key} {split.num_examples:,}" for key, split in builder.info.splits.items())
  return f"{name} ({splits} examples) {verb} in {builder.data_dir}"


@contextlib.contextmanager
def _files_from(builder: tfds.core.DatasetBuilder, source: str) -> Iterator[None]:
  """Makes a builder find its original files in a folder while it prepares.

  Works for sets whose files TFDS takes from one address, which the builder class keeps in `URL`.
  """
  cls = type(builder)
  address = vars(cls).get("URL", "")
  names = [url.removeprefix(address) for url in cls.url_infos or () if url.startswith(address)]
  if not address or not names:
    raise ConfigError.of(
      "--source",
      f"the builder of {builder.name} does not take its files from one address.\n"
      "If its page in the TFDS catalog asks for a manual download, put the files into "
      f"{os.path.join(builder.data_dir_root, 'downloads', 'manual')} and leave --source out.",
    )
  folder = os.path.join(os.path.abspath(os.path.expanduser(source)), "")
  missing = [name for name in names if not os.path.isfile(folder + name)]
  if missing:
    raise ConfigError.of("--source", f"{folder} lacks {', '.join(sorted(missing))}.")
  cls.URL = folder
  try:
    yield
  finally:
    cls.URL = address


if __name__ == "__main__":
  sys.exit(main())
