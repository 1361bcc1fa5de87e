import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from sklearn.datasets import load_digits

from official_trainer.data.indexed import Anchor, IndexedInput
from official_trainer.experiments.digits import config as digits_config
from official_trainer.experiments.digits import task as digits_task
from official_trainer.experiments.digits.images import load_split
from official_trainer.experiments.digits.task import DigitsMlpTask, DigitsTask
from official_trainer.experiments.fashion_mnist import config as fashion_config
from official_trainer.experiments.fashion_mnist.task import FashionMnistTask


def rows(array):
  return sorted(array.reshape(len(array), -1).tolist())


def read(source, seed=0):
  seeds = tf.tile([[seed, 1]], [len(source), 1])
  return source.read(tf.range(len(source), dtype=tf.int64), seeds)


def test_the_splits_are_the_whole_collection_with_other_writers_in_the_test():
  train, test = load_split("train"), load_split("test")
  assert len(train[0]) == 1437 and len(test[0]) == 360
  digits = load_digits()
  shades = np.concatenate([train[0], test[0]])[..., 0]
  np.testing.assert_array_equal(np.round(shades / 255 * 16), digits.images)
  np.testing.assert_array_equal(np.concatenate([train[1], test[1]]), digits.target)
  with pytest.raises(ValueError, match="train, test, got 'validation'"):
    load_split("validation")


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_tfds_set_holds_the_same_images(split):
  config = digits_config.cnn().task
  params = config.train_data if split == "train" else config.validation_data
  as_stored = types.SimpleNamespace(**{**vars(params), "is_training": False})
  source = DigitsTask(config).build_source(as_stored)
  images, labels = read(source)
  expected, expected_labels = load_split(split)
  assert rows(np.round(images.numpy() * 255).astype(np.uint8)) == rows(expected)
  np.testing.assert_array_equal(np.bincount(labels), np.bincount(expected_labels))
  assert source.element_spec == (
    tf.TensorSpec([None, 8, 8, 1], tf.float32),
    tf.TensorSpec([None], tf.int32),
  )
  assert images.numpy().min() == 0 and images.numpy().max() == 1


def test_only_training_images_are_moved():
  config = digits_config.cnn().task
  task = DigitsTask(config)
  training, evaluation = (
    task.build_source(config.train_data),
    task.build_source(config.validation_data),
  )
  assert (read(training, 1)[0].numpy() != read(training, 2)[0].numpy()).any()
  np.testing.assert_array_equal(read(evaluation, 1)[0], read(evaluation, 2)[0])
  np.testing.assert_array_equal(read(training, 1)[1], read(training, 2)[1])


def test_a_moved_image_is_the_original_by_one_pixel():
  images = np.random.default_rng(0).integers(1, 255, [200, 5, 4, 2]).astype(np.uint8)
  seeds = tf.stack([tf.range(200), tf.range(200)], axis=1)
  moved = digits_task.shift(tf.constant(images), seeds).numpy()
  padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
  kinds = set()
  for original, result in zip(padded, moved, strict=True):
    windows = {(i, j): original[i : i + 5, j : j + 4] for i in range(3) for j in range(3)}
    found = [offset for offset, window in windows.items() if (window == result).all()]
    assert len(found) == 1
    kinds.add(found[0])
  assert len(kinds) == 9


def test_training_batches_are_the_same_whenever_they_are_read():
  config = digits_config.cnn().task
  source = DigitsTask(config).build_source(config.train_data)
  stream = IndexedInput(source, global_batch_size=64, seed=3, shuffle=True)
  whole = list(stream.dataset(20, Anchor.start(64)).take(6))
  later = next(iter(stream.dataset(25, Anchor.start(64))))
  tf.nest.map_structure(np.testing.assert_array_equal, whole[5].inputs, later.inputs)


@pytest.mark.parametrize(
  ("task_class", "config", "shape"),
  [
    (DigitsTask, digits_config.cnn, (8, 8, 1)),
    (FashionMnistTask, fashion_config.cnn, (28, 28, 1)),
    (DigitsMlpTask, digits_config.mlp, (8, 8, 1)),
  ],
)
def test_the_networks_give_one_loss_and_ten_logits_an_example(task_class, config, shape):
  task = task_class(config().task)
  model = task.build_model()
  assert model.input_shape == (None, *shape)
  labels = tf.constant([3, 9])
  logits = model(tf.zeros([2, *shape]))
  losses = task.build_losses(labels, logits)
  assert logits.shape == [2, 10] and logits.dtype == tf.float32
  expected = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  np.testing.assert_array_equal(losses, expected)
  assert [metric.name for metric in task.build_metrics()] == ["accuracy"]


def test_the_network_of_the_digits_has_66_thousand_weights():
  model = DigitsTask(digits_config.cnn().task).build_model()
  assert 60_000 < model.count_params() < 70_000
  norms = [x for x in model.layers if isinstance(x, tf_keras.layers.BatchNormalization)]
  assert len(norms) == 3 and all(norm.synchronized for norm in norms)


def mlp_inputs(training, **settings):
  config = digits_config.mlp().task
  params = config.train_data if training else config.validation_data
  params = types.SimpleNamespace(**{**vars(params), **settings})
  return lambda context=None: DigitsMlpTask(config).build_inputs(params, context)


def test_the_plain_pipeline_evaluates_each_image_once():
  batches = list(mlp_inputs(training=False)())
  assert sum(len(labels) for _, labels in batches) == 360
  assert batches[0][0].shape == [64, 8, 8, 1] and batches[0][0].dtype == tf.float32


def test_the_plain_pipeline_trains_for_ever_in_an_order_that_the_seed_decides():
  def labels(**settings):
    dataset = mlp_inputs(training=True, **settings)().take(30)
    return np.concatenate([batch[1].numpy() for batch in dataset])

  assert len(labels()) == 30 * 64
  np.testing.assert_array_equal(labels(), labels())
  assert (labels() != labels(seed=5)).any()


def test_the_plain_pipeline_gives_each_replica_its_share():
  inputs = mlp_inputs(training=False)
  contexts = [tf.distribute.InputContext(2, index, 4) for index in range(2)]
  sizes = [[len(labels) for _, labels in inputs(context)] for context in contexts]
  assert sizes[0][0] == 16
  assert sum(map(sum, sizes)) == 360
