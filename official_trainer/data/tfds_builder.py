"""TFDS builders: found by name, prepared once in ArrayRecord form."""

from __future__ import annotations

import contextlib
import importlib
import io

import tensorflow_datasets as tfds
from absl import logging

from official_trainer.config.nearest import meant
from official_trainer.errors import ConfigError

ARRAY_RECORD = "array_record"

# Sets that come with the library: TFDS name -> module whose import registers the builder. They are
# prepared when first asked for, since that takes no download.
BUILT_IN = {"sklearn_digits": "official_trainer.experiments.digits.builder"}


def open_builder(name: str, data_dir: str = "") -> tfds.core.DatasetBuilder:
  """Returns the builder of a TFDS name: 'mnist', 'mnist:3.0.1', 'glue/sst2'. Reads no data.

  Args:
    name: the name, with a config and a version or without.
    data_dir: folder of prepared sets; empty for TFDS's own, `$TFDS_DATA_DIR` or
      `~/tensorflow_datasets`.

  Raises:
    ConfigError: no set has this name.
  """
  base = name.partition("/")[0].partition(":")[0]
  if base in BUILT_IN:
    importlib.import_module(BUILT_IN[base])
  try:
    return tfds.builder(name, data_dir=data_dir or None)
  except tfds.core.DatasetNotFoundError as error:
    known = {*tfds.list_builders(with_community_datasets=False), *BUILT_IN}
    where = data_dir or tfds.core.constants.DATA_DIR
    raise ConfigError.of(
      "tfds_name",
      f"TFDS knows no data set '{name}', and none is prepared in {where}.{meant(base, known)}\n"
      "A builder of your own is known once its module is imported: --experiment_module=MODULE.",
    ) from error


def open_prepared(name: str, data_dir: str = "") -> tfds.core.DatasetBuilder:
  """Returns the builder of a set that is on disk. Uses no network.

  Raises:
    ConfigError: there is no such set, or it was not prepared yet.
  """
  builder = open_builder(name, data_dir)
  if is_prepared(builder):
    return builder
  if builder.name in BUILT_IN:
    logging.info("Preparing %s in %s (once).", name, builder.data_dir)
    tfds.disable_progress_bar()
    # TFDS prints what it does, in the middle of the program's own output.
    with contextlib.redirect_stdout(io.StringIO()):
      return prepare(name, data_dir)
  raise ConfigError.of(
    "tfds_name",
    f"The TFDS data set '{name}' is not prepared in {builder.data_dir}.\n"
    f"Prepare it once: {prepare_command(name, data_dir)}\n"
    "(--source=DIR reads its original files from a folder instead of the network)",
  )


def prepare(name: str, data_dir: str = "") -> tfds.core.DatasetBuilder:
  """Writes a set in ArrayRecord form unless it is there, and returns its builder.

  Several processes may do so at the same time: each writes a folder of its own and renames it, the
  first one wins.
  """
  builder = open_builder(name, data_dir)
  config = tfds.download.DownloadConfig(try_download_gcs=False)
  try:
    builder.download_and_prepare(file_format=ARRAY_RECORD, download_config=config)
  except OSError:
    # Renaming onto the folder of whoever was first.
    if not is_prepared(builder):
      raise
  if not is_prepared(builder):
    # TFDS takes any folder of this name for a prepared set.
    raise ConfigError.of(
      "tfds_name",
      f"{builder.data_dir} holds an incomplete {name}. Remove the folder, and try again.",
    )
  # A new builder, which knows the set as it is on disk, whoever wrote it.
  return open_builder(name, data_dir)


def is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
  """Returns whether the set is on disk, complete."""
  # TFDS's own check warns of a folder that is not there.
  return builder.data_path.exists() and builder.is_prepared()


def formats(builder: tfds.core.DatasetBuilder) -> set[str]:
  """Returns the names of the file formats that a prepared set is there in."""
  return {file_format.value for file_format in builder.info.available_file_formats()}


def prepare_command(name: str, data_dir: str = "") -> str:
  """Returns the command line that prepares a set."""
  folder = f" --data_dir={data_dir}" if data_dir else ""
  return f"python -m official_trainer.data.prepare {name}{folder}"
