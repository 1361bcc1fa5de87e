"""TFDS splits as sources with random access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from official_trainer.config import foreign
from official_trainer.data import arrays, records, tfds_builder
from official_trainer.data.config import DataConfig
from official_trainer.data.source import RandomAccessSource, Structure
from official_trainer.errors import ConfigError

_ROWS_A_BATCH = 256


def tfds_source(params: Any, *, example_fn: Callable[[Structure], Structure] | None = None) -> RandomAccessSource:
  """Returns a split of a prepared TFDS set. Uses no network.

  A split whose decoded examples fit into `params.cache_in_memory_mb` is read once and kept in
  memory. A larger one must be in ArrayRecord form; each batch reads and decodes its own records.

  Args:
    params: a DataConfig, ours or a foreign one. Read are `tfds_name`, `tfds_split` (slices too: 'train[:10%]'),
      `tfds_data_dir`, `tfds_as_supervised`, `tfds_skip_decoding_feature`, `cache_in_memory_mb`.
    example_fn: turns one decoded example into one of fixed shapes. Needed where examples differ in
      shape, such as photographs; without randomness, since what it returns may be kept.

  Returns:
    A source of dictionaries of features, or of (input, label) with `tfds_as_supervised`.

  Raises:
    ConfigError: the set, the split or a feature does not exist; the set is not prepared (the text
      has the command that does it); examples have no fixed shape.
  """
  params = foreign.read(DataConfig, params)
  if not params.tfds_name or not params.tfds_split:
    missing = "tfds_split" if params.tfds_name else "tfds_name"
    raise ConfigError.of(missing, "must be set, e.g. tfds_name='mnist', tfds_split='train'.")
  builder = tfds_builder.open_prepared(params.tfds_name, params.tfds_data_dir)
  num_examples = _num_examples(builder, params.tfds_split)
  skip = _names(params.tfds_skip_decoding_feature)
  _check_features(builder, skip)
  select = _selector(builder, params.tfds_as_supervised)
  budget = params.cache_in_memory_mb * 2**20
  if tfds_builder.ARRAY_RECORD not in tfds_builder.formats(builder):
    dataset = _sequential(builder, params.tfds_split, skip, select, example_fn)
    return _read_once(builder, dataset, num_examples, budget, params)
  if num_examples == 0:
    return _empty(builder, skip, select, example_fn)
  source = records.RecordSource(
    builder.as_data_source(
      params.tfds_split,
      deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
      file_format=tfds_builder.ARRAY_RECORD,
    ),
    records.decoder(builder.info.features, skip=skip, select=select, example_fn=example_fn),
  )
  size = arrays.memory_bytes(source)
  if size > budget:
    logging.info(
      "%s %s takes %.0f MB decoded: read for each batch.",
      params.tfds_name, params.tfds_split, size / 2**20,
    )  # fmt: skip
    return source
  return arrays.load(source)


def num_examples(params: Any) -> int:
  """Returns the number of examples of a split of a prepared TFDS set, without reading any.

  Arguments and errors as those of `tfds_source`.
  """
  return _num_examples(tfds_builder.open_prepared(params.tfds_name, params.tfds_data_dir), params.tfds_split)


def _num_examples(builder: tfds.core.DatasetBuilder, split: str) -> int:
  try:
    return builder.info.splits[split].num_examples
  except (KeyError, ValueError) as error:
    known = ", ".join(f"{name} ({info.num_examples})" for name, info in builder.info.splits.items())
    raise ConfigError.of(
      "tfds_split",
      f"'{split}' is no split of {builder.info.full_name}. It has: {known}; slices are written "
      "'train[:10%]', 'train[100:200]', sums 'train+test'.",
    ) from error


def _names(text: str) -> list[str]:
  return [name.strip() for name in text.split(",") if name.strip()]


def _check_features(builder: tfds.core.DatasetBuilder, skip: list[str]) -> None:
  known = list(builder.info.features)
  unknown = [name for name in skip if name not in known]
  if unknown:
    raise ConfigError.of(
      "tfds_skip_decoding_feature",
      f"{builder.info.full_name} has no feature {', '.join(unknown)}. It has: {', '.join(known)}.",
    )


def _selector(builder: tfds.core.DatasetBuilder, as_supervised: bool) -> Callable[[dict[str, Any]], Structure]:
  if not as_supervised:
    return lambda example: example
  keys = builder.info.supervised_keys
  if keys is None:
    raise ConfigError.of(
      "tfds_as_supervised",
      f"{builder.info.full_name} does not say what is input and what is label. Leave it off.",
    )
  return lambda example: tf.nest.map_structure(lambda key: example[key], keys)


def _sequential(
  builder: tfds.core.DatasetBuilder,
  split: str,
  skip: list[str],
  select: Callable[[dict[str, Any]], Structure],
  example_fn: Callable[[Structure], Structure] | None,
) -> tf.data.Dataset:
  """Returns the decoded examples of a set without random access, in the order of its files."""
  dataset = builder.as_dataset(
    split=split,
    shuffle_files=False,
    decoders={name: tfds.decode.SkipDecoding() for name in skip},
    read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
  ).map(select)
  return dataset if example_fn is None else dataset.map(example_fn)


def _read_once(
  builder: tfds.core.DatasetBuilder,
  dataset: tf.data.Dataset,
  num_examples: int,
  budget: int,
  params: Any,
) -> RandomAccessSource:
  records.require_fixed_shapes(dataset.element_spec)
  specs = tf.nest.flatten(dataset.element_spec)
  # Strings are about as long as on disk, of which TFDS knows the size of whole splits only.
  on_disk = builder.info.dataset_size if any(s.dtype == tf.string for s in specs) else 0
  fixed = sum(s.shape.num_elements() * s.dtype.size for s in specs if s.dtype != tf.string)
  size = fixed * num_examples + on_disk
  if size > budget:
    formats = ", ".join(sorted(tfds_builder.formats(builder)))
    raise ConfigError.of(
      "tfds_name",
      f"{builder.info.full_name} is prepared as {formats}, without random access, and takes "
      f"{size / 2**20:.0f} MB decoded, more than cache_in_memory_mb={params.cache_in_memory_mb}.\n"
      "Prepare it as array_record in another folder and set tfds_data_dir to it: "
      f"{tfds_builder.prepare_command(params.tfds_name, 'DIR')}\n"
      "or raise cache_in_memory_mb.",
    )
  logging.info("%s is not in ArrayRecord form: read into memory.", builder.info.full_name)
  return arrays.collect(dataset.batch(_ROWS_A_BATCH), num_examples)


def _empty(
  builder: tfds.core.DatasetBuilder,
  skip: list[str],
  select: Callable[[dict[str, Any]], Structure],
  example_fn: Callable[[Structure], Structure] | None,
) -> RandomAccessSource:
  """Returns a source without examples, for a slice such as 'train[:0]', which no reader opens."""
  decode = records.decoder(builder.info.features, skip=skip, select=select, example_fn=example_fn)
  return arrays.load(records.RecordSource(_NoRecords(), decode))


class _NoRecords:
  def __len__(self) -> int:
    return 0

  def __getitems__(self, indices: Any) -> list[bytes]:
    raise IndexError(f"There are no records, asked for {indices}.")
