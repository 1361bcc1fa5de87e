import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from official_trainer.data import tfds_builder
from official_trainer.data.arrays import ArraySource
from official_trainer.data.config import DataConfig
from official_trainer.data.records import RecordSource
from official_trainer.data.tfds import tfds_source
from official_trainer.errors import ConfigError
from tests.data import tiny_sets

FIXED_SIZE = {
  "image": tf.TensorSpec([None, 8, 8, 1], tf.uint8),
  "label": tf.TensorSpec([None], tf.int64),
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """A folder with the tiny sets in ArrayRecord form."""
  folder = str(tmp_path_factory.mktemp("array_record"))
  for name in ("tiny_nested", "tiny_photos"):
    tfds_builder.prepare(name, folder)
  return folder


@pytest.fixture(scope="module")
def tfrecord_dir(tmp_path_factory):
  """A folder with a tiny set in the form that TFDS writes by default."""
  folder = str(tmp_path_factory.mktemp("tfrecord"))
  tfds.builder("tiny_nested", data_dir=folder).download_and_prepare()
  return folder


@pytest.fixture
def no_network(monkeypatch):
  def refuse(*args):
    raise AssertionError("the network was asked for")

  monkeypatch.setattr(socket.socket, "connect", refuse)
  monkeypatch.setattr(socket, "getaddrinfo", refuse)


def digits(split="test", **settings):
  return tfds_source(DataConfig(tfds_name="sklearn_digits", tfds_split=split, **settings))


def all_of(source):
  indices = tf.range(len(source), dtype=tf.int64)
  return source.read(indices, tf.zeros([len(source), 2], tf.int32))


def in_graph(source, indices):
  dataset = tf.data.Dataset.from_tensors(tf.constant(indices, tf.int64))
  return next(iter(dataset.map(lambda i: source.read(i, tf.zeros([tf.size(i), 2], tf.int32)))))


def assert_equal(first, second):
  tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def test_the_digits_are_prepared_when_first_asked_for(no_network):
  source = digits()
  assert len(source) == 360
  assert source.element_spec == FIXED_SIZE


def test_a_split_that_fits_is_kept_in_memory_and_a_larger_one_is_read():
  kept, read = digits(), digits(cache_in_memory_mb=0)
  assert isinstance(kept, ArraySource) and isinstance(read, RecordSource)
  assert read.element_spec == kept.element_spec
  assert_equal(all_of(kept), all_of(read))
  assert_equal(in_graph(kept, [7, 0, 7]), in_graph(read, [7, 0, 7]))


@pytest.mark.parametrize("cache_in_memory_mb", [0, 512])
@pytest.mark.parametrize(
  ("split", "rows"),
  [("test[:10%]", slice(36)), ("test[5:9]", slice(5, 9)), ("test[-7:]", slice(-7, None))],
)
def test_slices_are_those_of_tfds(split, rows, cache_in_memory_mb):
  part = digits(split, cache_in_memory_mb=cache_in_memory_mb)
  whole = tf.nest.map_structure(lambda tensor: tensor[rows], all_of(digits()))
  assert_equal(all_of(part), whole)


def test_splits_can_be_added():
  assert len(digits("train+test")) == 1797


def test_an_empty_slice_is_an_empty_source():
  source = digits("test[:0]")
  assert len(source) == 0
  assert source.element_spec == FIXED_SIZE


def test_supervised_sets_give_pairs():
  images, labels = all_of(digits(tfds_as_supervised=True))
  expected = all_of(digits())
  assert_equal(images, expected["image"])
  assert_equal(labels, expected["label"])


@pytest.mark.parametrize("cache_in_memory_mb", [0, 512])
def test_a_feature_can_stay_encoded(cache_in_memory_mb):
  source = digits(tfds_skip_decoding_feature="image", cache_in_memory_mb=cache_in_memory_mb)
  assert source.element_spec["image"] == tf.TensorSpec([None], tf.string)
  encoded = all_of(source)["image"]
  np.testing.assert_array_equal(tf.io.decode_png(encoded[3]), all_of(digits())["image"][3])


@pytest.mark.parametrize("cache_in_memory_mb", [0, 512])
def test_nested_features_of_every_type_are_decoded_like_tfds_does(data_dir, cache_in_memory_mb):
  source = tfds_source(
    DataConfig(
      tfds_name="tiny_nested",
      tfds_split="train",
      tfds_data_dir=data_dir,
      cache_in_memory_mb=cache_in_memory_mb,
    )
  )
  batch = tf.nest.map_structure(lambda tensor: tensor.numpy(), all_of(source))
  assert sorted(batch["id"]) == list(range(tiny_sets.NUM_EXAMPLES))
  for row, number in enumerate(batch["id"]):
    expected = tiny_sets.nested_example(int(number))
    expected["name"] = expected["name"].encode()
    assert_equal(tf.nest.map_structure(lambda array, row=row: array[row], batch), expected)
  assert source.element_spec["pair"]["flag"] == tf.TensorSpec([None], tf.bool)
  assert source.element_spec["id"] == tf.TensorSpec([None], tf.int32)


def photos(data_dir, example_fn=None, **settings):
  params = DataConfig(tfds_name="tiny_photos", tfds_split="train", tfds_data_dir=data_dir, **settings)
  return tfds_source(params, example_fn=example_fn)


def test_examples_of_different_shapes_are_refused_with_the_remedy(data_dir):
  with pytest.raises(ConfigError, match=r"(?s)no fixed ones: boxes/label .*; image .*`example_fn`"):
    photos(data_dir)


@pytest.mark.parametrize("cache_in_memory_mb", [0, 512])
def test_an_example_function_gives_examples_one_shape(data_dir, cache_in_memory_mb):
  def example_fn(example):
    labels = example["boxes"]["label"]
    padded = tf.pad(labels, [[0, 8 - tf.size(labels)]], constant_values=-1)
    corner = tf.ensure_shape(example["image"][:2, :2], [2, 2, 3])
    return {"corner": corner, "labels": tf.ensure_shape(padded, [8])}

  source = photos(data_dir, example_fn, cache_in_memory_mb=cache_in_memory_mb)
  assert source.element_spec == {
    "corner": tf.TensorSpec([None, 2, 2, 3], tf.uint8),
    "labels": tf.TensorSpec([None, 8], tf.int64),
  }
  batch = all_of(source)
  for corner, labels in zip(batch["corner"].numpy(), batch["labels"].numpy(), strict=True):
    number = corner[0, 0, 0]
    np.testing.assert_array_equal(labels, [*range(number), *[-1] * (8 - number)])


def test_a_set_in_tfrecord_form_is_read_into_memory_when_it_fits(data_dir, tfrecord_dir):
  params = {"tfds_name": "tiny_nested", "tfds_split": "train"}
  tfrecord = tfds_source(DataConfig(**params, tfds_data_dir=tfrecord_dir))
  array_record = tfds_source(DataConfig(**params, tfds_data_dir=data_dir))
  assert tfrecord.element_spec == array_record.element_spec
  assert_equal(all_of(tfrecord), all_of(array_record))


def test_a_set_in_tfrecord_form_that_does_not_fit_says_what_to_do(tfrecord_dir):
  params = DataConfig(tfds_name="tiny_nested", tfds_split="train", tfds_data_dir=tfrecord_dir, cache_in_memory_mb=0)
  with pytest.raises(ConfigError, match=r"(?s)as tfrecord.*prepare tiny_nested --data_dir=DIR"):
    tfds_source(params)


def test_a_set_that_is_not_prepared_fails_at_once_with_the_command(no_network, tmp_path):
  with pytest.raises(ConfigError, match=rf"python -m official_trainer.data.prepare mnist --data_dir={tmp_path}"):
    tfds_source(DataConfig(tfds_name="mnist", tfds_split="train", tfds_data_dir=str(tmp_path)))


@pytest.mark.parametrize(
  ("settings", "text"),
  [
    ({"tfds_name": "sklearn_digit"}, "Did you mean 'sklearn_digits'"),
    ({"tfds_split": "validation"}, r"has: train \(1437\), test \(360\)"),
    ({"tfds_split": "test[oops]"}, r"has: train \(1437\), test \(360\)"),
    ({"tfds_split": ""}, "tfds_split: must be set"),
    ({"tfds_name": ""}, "tfds_name: must be set"),
    ({"tfds_skip_decoding_feature": "img"}, "no feature img. It has: image, label"),
  ],
)
def test_wrong_names_are_refused_with_the_right_ones(no_network, settings, text):
  with pytest.raises(ConfigError, match=text):
    tfds_source(DataConfig(**{"tfds_name": "sklearn_digits", "tfds_split": "test", **settings}))


def test_a_set_without_supervised_keys_cannot_give_pairs(data_dir):
  params = DataConfig(tfds_name="tiny_nested", tfds_split="train", tfds_data_dir=data_dir, tfds_as_supervised=True)
  with pytest.raises(ConfigError, match="what is input and what is label"):
    tfds_source(params)
