"""A source whose examples are serialized records on disk, read and decoded for each batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from official_trainer.data.source import RandomAccessSource, Structure
from official_trainer.errors import ConfigError

Decode = Callable[[tf.Tensor], Structure]
"""Serialized records, string [n] -> nested structure of dense tensors [n, ...]."""


class Records(Protocol):
  """Random access to serialized records, as ArrayRecord's data source gives it."""

  def __len__(self) -> int: ...

  def __getitems__(self, indices: Sequence[int]) -> Sequence[bytes]: ...


class RecordSource(RandomAccessSource):
  """Reads raw bytes by index, and decodes a whole batch in the graph."""

  def __init__(self, records: Records, decode: Decode):
    self._records = records
    self._decode = decode

  def __len__(self) -> int:
    return len(self._records)

  def read(self, indices: tf.Tensor, seeds: tf.Tensor) -> Structure:
    del seeds
    serialized = tf.numpy_function(self._bytes, [indices], tf.string)
    return self._decode(tf.ensure_shape(serialized, indices.shape))

  @functools.cached_property
  def element_spec(self) -> Structure:
    return _spec(self._decode, tf.TensorSpec([None], tf.string))

  def _bytes(self, indices: np.ndarray) -> np.ndarray:
    # As objects: NumPy's own strings lose trailing zero bytes.
    return np.array(self._records.__getitems__(indices.tolist()), dtype=object)


def decoder(
  features: tfds.features.FeaturesDict,
  *,
  skip: Iterable[str] = (),
  select: Callable[[dict[str, Any]], Structure] = lambda example: example,
  example_fn: Callable[[Structure], Structure] | None = None,
) -> Decode:
  """Returns what turns serialized `tf.train.Example`s into a batch.

  Args:
    features: the set's features.
    skip: names of top-level features that stay encoded.
    select: takes the dictionary of features, of one example or of a batch, apart.
    example_fn: turns one decoded example, whose tensors may have any shapes, into one of fixed
      shapes. None if they are fixed already; then a batch is parsed at once, and faster.

  Raises:
    ConfigError: without `example_fn`, a feature has no fixed shape.
  """
  if example_fn is None and _is_fixed(features):
    specs = features.tf_example_spec

    def decode(serialized: tf.Tensor) -> Structure:
      return select(_decoded(features, tf.io.parse_example(serialized, specs), "", set(skip)))

    return decode

  decoders = {name: tfds.decode.SkipDecoding() for name in skip}

  def decode_one(serialized: tf.Tensor) -> Structure:
    example = select(features.deserialize_example(serialized, decoders=decoders))
    return example if example_fn is None else example_fn(example)

  spec = _spec(decode_one, tf.TensorSpec([], tf.string))
  require_fixed_shapes(spec)
  return lambda serialized: tf.map_fn(decode_one, serialized, fn_output_signature=spec, parallel_iterations=10)


def require_fixed_shapes(spec: Structure) -> None:
  """Raises unless every tensor of an example is dense and has a fixed shape.

  Args:
    spec: of one example.
  """
  bad = [
    f"{path} {part}"
    for path, part in _named(spec)
    if not isinstance(part, tf.TensorSpec) or not part.shape.is_fully_defined()
  ]
  if bad:
    raise ConfigError.of(
      "tfds_name",
      f"Examples of one batch need the same shapes, these have no fixed ones: {'; '.join(bad)}.\n"
      "Give `tfds_source` an `example_fn` that crops, resizes or pads one example.",
    )


def _named(spec: Structure, path: str = "") -> Iterator[tuple[str, tf.TypeSpec]]:
  """Yields each component of a structure with its keys."""
  if isinstance(spec, Mapping):
    parts = spec.items()
  elif isinstance(spec, tuple):
    parts = enumerate(spec)
  else:
    yield path, spec
    return
  for key, part in parts:
    yield from _named(part, f"{path}/{key}" if path else str(key))


def _spec(fn: Callable[..., Structure], argument: tf.TensorSpec) -> Structure:
  outputs = tf.function(fn).get_concrete_function(argument).structured_outputs
  return tf.nest.map_structure(tf.type_spec_from_value, outputs)


def _is_fixed(feature: tfds.features.FeatureConnector) -> bool:
  """Returns whether a feature is stored as, and decodes to, tensors of fixed shapes."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return all(_is_fixed(part) for part in feature.values())
  stored, decoded = feature.get_serialized_info(), feature.get_tensor_info()
  if not all(isinstance(info, tfds.features.TensorInfo) for info in (stored, decoded)):
    return False
  return None not in stored.shape and None not in decoded.shape


def _decoded(
  feature: tfds.features.FeatureConnector, parsed: dict[str, tf.Tensor], path: str, skip: set[str]
) -> Structure:
  """Decodes a batch of one feature, and of what is inside it."""
  if isinstance(feature, tfds.features.FeaturesDict):
    prefix = f"{path}/" if path else ""
    return {name: _decoded(part, parsed, f"{prefix}{name}", skip) for name, part in feature.items()}
  # Example protos know int64, float32 and strings only.
  value = tf.cast(parsed[path], feature.get_serialized_info().tf_dtype)
  if path.partition("/")[0] in skip:
    return value
  decoded = feature.get_tensor_info()
  if value.dtype == decoded.tf_dtype:
    return feature.decode_batch_example(value)
  # An image, or compressed numbers: one at a time, as TFDS would, but without its warning.
  spec = tf.TensorSpec(decoded.shape, decoded.tf_dtype)
  return tf.map_fn(feature.decode_example, value, fn_output_signature=spec, parallel_iterations=10)
