"""Every example counts exactly once (foundation F5, issue point 4)."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.data.arrays import ArraySource
from official_trainer.inner_loop.feed import validation_feed
from official_trainer.trainer import Trainer
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")

LARGEST = 20
TOKENS, CLASSES = 3, 4


def token_rows(size, seed=0):
  """Returns features, float32 [size, 3], and tokens, int32 [size, 3]; token 0 is padding, at the end of a row."""
  generator = np.random.default_rng(seed)
  features = generator.normal(size=(size, small_tasks.FEATURES)).astype(np.float32)
  lengths = generator.integers(1, TOKENS + 1, size=(size, 1))
  tokens = generator.integers(1, CLASSES, size=(size, TOKENS))
  return features, np.where(np.arange(TOKENS) < lengths, tokens, 0).astype(np.int32)


class Tokens(small_tasks.Regression):
  """Cross entropy per token with a regulariser; the loss is the mean over tokens that are not padding."""

  def __init__(self, params):
    super().__init__(params, train=token_rows(LARGEST), validation=token_rows(LARGEST))

  def build_model(self):
    inputs = tf_keras.layers.Input((small_tasks.FEATURES,))
    dense = tf_keras.layers.Dense(TOKENS * CLASSES, kernel_regularizer=tf_keras.regularizers.l2(0.01))
    return tf_keras.Model(inputs, tf_keras.layers.Reshape((TOKENS, CLASSES))(dense(inputs)))

  def loss_weight(self, labels, mask):
    return tf.reduce_sum(_real_tokens(labels) * mask[:, tf.newaxis])

  def build_losses(self, labels, model_outputs, aux_losses=None):
    losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
    return losses * _real_tokens(labels)

  def build_metrics(self, training=True):
    metrics = tf_keras.metrics
    return [
      metrics.SparseCategoricalAccuracy(name="accuracy"),
      metrics.Mean(name="logit"),
      metrics.Sum(name="tokens"),
      *(kind(0.5, name=kind.__name__) for kind in _COUNTS),
    ]

  def process_metrics(self, metrics, labels, model_outputs, sample_weight=None):
    weight = _real_tokens(labels)
    if sample_weight is not None:
      weight *= sample_weight[:, tf.newaxis]
    accuracy, logit, tokens, *counts = metrics
    accuracy.update_state(labels, model_outputs, sample_weight=weight)
    logit.update_state(model_outputs[..., 0], sample_weight=weight)
    tokens.update_state(weight)
    for count in counts:
      count.update_state(labels == 1, tf.nn.softmax(model_outputs)[..., 1], sample_weight=weight)


class TokensPipeline(Tokens):
  """The same from a plain pipeline, whose last batch is a partial one."""

  def build_source(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    size = input_context.get_per_replica_batch_size(params.global_batch_size)
    return tf.data.Dataset.from_tensor_slices(self.validation).batch(size)


_COUNTS = (
  tf_keras.metrics.TruePositives,
  tf_keras.metrics.TrueNegatives,
  tf_keras.metrics.FalsePositives,
  tf_keras.metrics.FalseNegatives,
)


def _real_tokens(labels):
  return tf.cast(labels > 0, tf.float32)


def reference(model, features, tokens):
  """What an evaluation must report, in NumPy and double precision."""
  kernel, bias = (value.astype(np.float64) for value in model.get_weights())
  logits = (features.astype(np.float64) @ kernel + bias).reshape([-1, TOKENS, CLASSES])
  exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
  probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
  real = tokens > 0
  chosen = np.take_along_axis(probabilities, tokens[..., np.newaxis], axis=-1)[..., 0]
  is_one, says_one = tokens == 1, probabilities[..., 1] > 0.5
  return {
    "validation_loss": -np.log(chosen[real]).mean() + 0.01 * np.square(kernel).sum(),
    "accuracy": (logits.argmax(axis=-1) == tokens)[real].mean(),
    "logit": logits[..., 0][real].mean(),
    "tokens": real.sum(),
    "TruePositives": (is_one & says_one & real).sum(),
    "TrueNegatives": (~is_one & ~says_one & real).sum(),
    "FalsePositives": (~is_one & says_one & real).sum(),
    "FalseNegatives": (is_one & ~says_one & real).sum(),
  }


def point_at(trainer: Trainer, examples, batch_size):
  """Makes a trainer evaluate other examples in other batches, with what it has compiled."""
  trainer.task.validation = examples
  params = small_tasks.experiment(eval_batch_size=batch_size).task.validation_data
  feed = validation_feed(trainer.task, params, strategy=trainer.strategy, seed=0, distribute=trainer.distribute_dataset)
  trainer.eval_dataset = feed.dataset(0)


ALL = tuple(itertools.product(range(1, LARGEST + 1), range(1, 9)))
SOME = tuple((size, batch) for size, batch in ALL if (3 * size + batch) % 7 == 0)


@pytest.mark.parametrize(
  "num_replicas, task, combinations",
  [
    (1, Tokens, ALL),
    (2, Tokens, ALL),
    (4, Tokens, SOME),
    (1, TokensPipeline, SOME),
    (2, TokensPipeline, SOME),
    (4, TokensPipeline, SOME),
  ],
  ids=lambda value: getattr(value, "__name__", None) or (f"{len(value)}" if isinstance(value, tuple) else None),
)
def test_t40_d7_loss_and_metrics_are_those_of_the_set_for_any_size_batch_and_number_of_replicas(
  num_replicas, task, combinations
):
  trainer = small_tasks.build_trainer(task=task, num_replicas=num_replicas)
  features, tokens = token_rows(LARGEST)
  for size, batch_size in combinations:
    point_at(trainer, (features[:size], tokens[:size]), batch_size)
    logs = small_tasks.evaluate(trainer)
    expected = reference(trainer.model, features[:size], tokens[:size])
    assert logs.keys() == expected.keys()
    for name, value in expected.items():
      np.testing.assert_allclose(
        logs[name], value, rtol=1e-6, atol=1e-7, err_msg=f"{name} of {size} examples in batches of {batch_size}"
      )
  shapes = {(batch, size % batch != 0) for size, batch in combinations}
  assert trainer.task.traces["validation"] <= len(shapes) * num_replicas


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("task", [Tokens, TokensPipeline])
def test_an_empty_set_is_an_error(task, num_replicas):
  trainer = small_tasks.build_trainer(task=task, num_replicas=num_replicas)
  features, tokens = token_rows(LARGEST)
  point_at(trainer, (features[:0], tokens[:0]), 4)
  with pytest.raises(ValueError, match="evaluation set is empty"):
    small_tasks.evaluate(trainer)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_number_of_batches_counts_those_examples(num_replicas):
  trainer = small_tasks.build_trainer(task=Tokens, num_replicas=num_replicas)
  features, tokens = token_rows(LARGEST)
  point_at(trainer, (features, tokens), 3)
  expected = reference(trainer.model, features[:6], tokens[:6])
  logs = small_tasks.evaluate(trainer, 2)
  np.testing.assert_allclose(list(logs.values()), [expected[name] for name in logs], rtol=1e-6)


def _compiled(task_class):
  class Compiled(task_class):
    """Its model brings loss and metrics itself."""

    def build_model(self):
      model = super().build_model()
      model.compile(loss="mse", metrics=["mae"], weighted_metrics=[tf_keras.metrics.MeanSquaredError(name="weighted")])
      return model

    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.constant(0.0)

    def build_metrics(self, training=True):
      return []

  return Compiled


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression])
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_compiled_losses_and_metrics_count_each_example_once(num_replicas, task):
  trainer = small_tasks.build_trainer(task=_compiled(task), num_replicas=num_replicas)
  examples = small_tasks.rows(11)
  for size, batch_size in [(1, 1), (1, 3), (5, 2), (5, 4), (11, 4), (11, 8)]:
    features, targets = (part[:size] for part in examples)
    point_at(trainer, (features, targets), batch_size)
    errors = trainer.model(features).numpy() - targets
    logs = small_tasks.evaluate(trainer)
    squares = np.square(errors).mean()
    expected = {"mae": np.abs(errors).mean(), "weighted": squares, "validation_loss": squares}
    assert logs.keys() == expected.keys()
    np.testing.assert_allclose([logs[name] for name in expected], list(expected.values()), rtol=1e-5)


def after_one_step(num_replicas, size, task=Tokens):
  config = small_tasks.experiment(batch_size=size, optimizer_config=small_tasks.optimization(rate=0.5))
  trainer = small_tasks.build_trainer(config, task=task, num_replicas=num_replicas)
  trainer.task.train = token_rows(size, seed=3) if issubclass(task, Tokens) else small_tasks.rows(size, seed=3)
  trainer = rebuilt(trainer, config, num_replicas)
  before = trainer.model.get_weights()
  loss = small_tasks.train(trainer, 1)["training_loss"]
  return before, trainer.model.get_weights(), loss


def rebuilt(trainer, config, num_replicas):
  """Returns a new trainer of the task with its present data."""
  return small_tasks.build_trainer(config, task=lambda params: trainer.task, num_replicas=num_replicas)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_the_gradient_of_an_uneven_batch_is_that_of_the_mean_over_the_global_batch(num_replicas):
  # Five examples over four replicas: 2, 2, 1 and none.
  (kernel, bias), (new_kernel, new_bias), loss = after_one_step(num_replicas, 5)
  features, tokens = token_rows(5, seed=3)
  logits = (features.astype(np.float64) @ kernel + bias).reshape([-1, TOKENS, CLASSES])
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  real = (tokens > 0)[..., np.newaxis]
  by_logit = ((probabilities - np.eye(CLASSES)[tokens]) * real / real.sum()).reshape([5, -1])
  np.testing.assert_allclose(new_kernel, kernel - 0.5 * (features.T @ by_logit + 0.02 * kernel), rtol=2e-5, atol=1e-6)
  np.testing.assert_allclose(new_bias, bias - 0.5 * by_logit.sum(axis=0), rtol=2e-5, atol=1e-6)
  chosen = np.take_along_axis(probabilities, tokens[..., np.newaxis], axis=-1)
  np.testing.assert_allclose(loss, -np.log(chosen[real]).mean() + 0.01 * np.square(kernel).sum(), rtol=1e-6)


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_the_gradient_of_an_uneven_batch_with_a_compiled_loss_is_that_of_one_replica(num_replicas):
  task = _compiled(small_tasks.Regression)
  _, expected, loss = after_one_step(1, 5, task)
  _, weights, value = after_one_step(num_replicas, 5, task)
  for weight, wanted in zip(weights, expected, strict=True):
    np.testing.assert_allclose(weight, wanted, rtol=1e-6, atol=1e-7)
  np.testing.assert_allclose(value, loss, rtol=1e-6)


class Fragile(small_tasks.Regression):
  """Its padding is not valid: a row that repeats the one before has the loss NaN, here without regard to the mask."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    losses = super().build_losses(labels, model_outputs)
    repeated = tf.concat([[False], tf.reduce_all(labels[1:] == labels[:-1], axis=1)], axis=0)
    return tf.where(repeated, np.nan, losses)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_a_padded_row_that_gives_nan_does_not_reach_loss_or_weights(num_replicas):
  _, weights, loss = after_one_step(num_replicas, 5, Fragile)
  _, expected, expected_loss = after_one_step(1, 5, small_tasks.Regression)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
  for weight, wanted in zip(weights, expected, strict=True):
    np.testing.assert_allclose(weight, wanted, rtol=1e-6, atol=1e-7)
  config = small_tasks.experiment(eval_batch_size=4)
  trainer = small_tasks.build_trainer(
    config, task=lambda params: Fragile(params, validation=small_tasks.rows(5)), num_replicas=num_replicas
  )
  assert np.isfinite(small_tasks.evaluate(trainer)["validation_loss"])


def test_a_scalar_loss_is_refused_where_padding_would_count():
  class Scalar(small_tasks.Regression):
    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(tf.square(model_outputs - labels))

  trainer = small_tasks.build_trainer(task=Scalar)
  point_at(trainer, small_tasks.rows(5), 4)
  with pytest.raises(ValueError, match="one loss for each example"):
    small_tasks.evaluate(trainer)
  point_at(trainer, small_tasks.rows(8), 4)
  assert np.isfinite(small_tasks.evaluate(trainer)["validation_loss"])


def test_a_source_that_augments_is_evaluated_each_time_alike():
  class Noisy(small_tasks.Regression):
    def build_source(self, params):
      from official_trainer.data.seeds import uniform

      source = ArraySource(self.validation)
      return source.augment(lambda batch, seeds: (batch[0] + uniform(seeds, small_tasks.FEATURES), batch[1]))

  trainer = small_tasks.build_trainer(task=Noisy)
  assert small_tasks.evaluate(trainer) == small_tasks.evaluate(trainer)
