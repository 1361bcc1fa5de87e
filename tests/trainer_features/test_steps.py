"""Steps of training: their data, their loss and its terms, their memory, the strategies under which they run."""

import gin
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.distribute.strategy import build_strategy
from official_trainer.optim.config import EmaConfig
from official_trainer.random_state import seed_everything
from official_trainer.trainer import Trainer
from tests import small_tasks, tiny

pytestmark = pytest.mark.usefixtures("logical_cpus")


def weights(trainer):
  return [value.tobytes() for value in trainer.model.get_weights()]


# ---- Data and model --------------------------------------------------------------------------------------------------


def test_t21_a_dataset_a_function_and_the_config_give_the_same_batches():
  by_config = small_tasks.build_trainer(task=small_tasks.PipelineRegression, evaluate=False)
  task, params = by_config.task, by_config.config.task.train_data
  supplied = {
    "dataset": by_config.distribute_dataset(task.build_inputs(params)),
    "function": by_config.distribute_dataset(task.build_inputs, params),
  }
  small_tasks.train(by_config, 3)
  for name, dataset in supplied.items():
    other = small_tasks.build_trainer(evaluate=False, train_dataset=dataset)
    small_tasks.train(other, 3)
    assert weights(other) == weights(by_config), name


class Dropping(small_tasks.Regression):
  """Reports which share of its outputs is 0."""

  def __init__(self, params):
    super().__init__(
      params, layers=lambda: [tf_keras.layers.Dense(16, bias_initializer="ones"), tf_keras.layers.Dropout(0.5)]
    )

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.reduce_mean(tf.square(model_outputs), axis=1)

  def build_metrics(self, training=True):
    return [tf_keras.metrics.Mean(name="zeros")]

  def process_metrics(self, metrics, labels, model_outputs, sample_weight=None):
    metrics[0].update_state(tf.cast(model_outputs == 0, tf.float32), sample_weight)


def test_t28_units_are_dropped_in_training_only():
  trainer = small_tasks.build_trainer(task=Dropping)
  assert 0.2 < small_tasks.train(trainer, 4)["zeros"] < 0.8
  assert small_tasks.evaluate(trainer)["zeros"] == 0.0


class Scaled(tf_keras.layers.Layer):
  """A loss with a weight of its own: the scale at which errors count."""

  def build(self, input_shape):
    self.scale = self.add_weight("scale", [], initializer="ones")
    super().build(input_shape)

  def call(self, error):
    return tf.exp(-self.scale) * tf.square(error) + self.scale


class WithLossLayer(small_tasks.Regression):
  """The layer hangs on the model, so that it is trained and saved with it."""

  def build_model(self):
    model = super().build_model()
    model.loss_layer = self.loss_layer = Scaled()
    self.loss_layer.build([None])
    return model

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return self.loss_layer(model_outputs - labels)[:, 0]


def test_t29_a_loss_with_weights_is_trained_and_restored(tmp_path):
  trainer, again = (small_tasks.build_trainer(task=WithLossLayer, evaluate=False) for _ in range(2))
  small_tasks.train(trainer, 4)
  scale = trainer.model.loss_layer.scale.numpy()
  assert scale != 1.0 and again.model.loss_layer.scale.numpy() == 1.0
  prefix = trainer.checkpoint.write(str(tmp_path / "ckpt"))
  assert scale in [value for name, value in tiny.contents(prefix).items() if "/scale/" in name]
  again.checkpoint.read(prefix).assert_consumed()
  assert weights(again) == weights(trainer) and again.model.loss_layer.scale.numpy() == scale
  small_tasks.train(trainer, 2)
  small_tasks.train(again, 2)
  assert small_tasks.bits(again) == small_tasks.bits(trainer)


# ---- The update ------------------------------------------------------------------------------------------------------


def address(variable):
  """Returns where the values of a variable are in memory."""
  return np.frombuffer(memoryview(variable.read_value()), np.uint8).__array_interface__["data"][0]


def test_d2_weights_slots_and_averages_stay_where_they_are_in_memory():
  averages = EmaConfig(average_decay=0.9)
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization("adam", ema=averages))
  trainer = small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, layers=small_tasks.deep), evaluate=False
  )
  updated = [*trainer.model.trainable_variables, *trainer.state.ema.averages]
  updated += [variable for variable in trainer.state.slots() if variable.shape.rank]
  small_tasks.train(trainer, 1)
  before, values = [address(variable) for variable in updated], [variable.numpy() for variable in updated]
  small_tasks.train(trainer, 6)
  assert [address(variable) for variable in updated] == before
  for variable, value in zip(updated, values, strict=True):
    assert (variable.numpy() != value).any(), variable.name


def test_d4_loss_metrics_and_gradient_come_from_one_forward_pass():
  class Watched(small_tasks.Regression):
    calls = 0

    def build_model(self):
      model = super().build_model()
      original = model.call

      def counted(*args, **kwargs):
        self.calls += 1
        return original(*args, **kwargs)

      model.call = counted
      return model

    def build_metrics(self, training=True):
      return [tf_keras.metrics.Mean(name="mean_output")]

    def process_metrics(self, metrics, labels, model_outputs, sample_weight=None):
      metrics[0].update_state(model_outputs, sample_weight)

  trainer = small_tasks.build_trainer(task=Watched, evaluate=False)
  features = next(iter(trainer.train_input.dataset(0))).inputs[0]
  predicted = trainer.model(features).numpy()
  trainer.task.calls = 0
  logs = small_tasks.train(trainer, 1)
  assert trainer.task.calls == trainer.task.traces["train"] == 1
  np.testing.assert_allclose(logs["mean_output"], predicted.mean(), rtol=1e-6)


def test_m16_losses_are_float32_means_over_examples_though_the_model_computes_in_bfloat16():
  class Half(small_tasks.Regression):
    """Its outputs are exact in bfloat16: 0.5 everywhere."""

    def build_model(self):
      inputs = tf_keras.layers.Input((small_tasks.FEATURES,))
      dense = tf_keras.layers.Dense(1, kernel_initializer="zeros", dtype="mixed_bfloat16")
      dense.trainable = False
      model = tf_keras.Model(inputs, tf_keras.layers.Dense(1, dtype="mixed_bfloat16")(dense(inputs)))
      model.layers[-1].bias.assign([0.5])
      return model

    def build_losses(self, labels, model_outputs, aux_losses=None):
      dtypes.add(model_outputs.dtype)
      return super().build_losses(labels, model_outputs)

  dtypes: set[tf.DType] = set()
  config = small_tasks.experiment(optimizer_config=small_tasks.optimization(rate=1e-30))
  trainer = small_tasks.build_trainer(config, task=Half)
  logs = small_tasks.evaluate(trainer)  # Ten examples in batches of four.
  assert dtypes == {tf.bfloat16}
  targets = trainer.task.validation[1].astype(np.float64)
  np.testing.assert_allclose(logs["validation_loss"], np.mean(np.square(0.5 - targets)), rtol=1e-6)
  for metric in (trainer.train_loss, trainer.validation_loss):
    assert metric.result().dtype == tf.float32


# ---- Terms of a loss -------------------------------------------------------------------------------------------------


class Terms(small_tasks.Regression):
  """A loss of two terms, and a regulariser."""

  loss_terms = {"near_loss": 1.0, "far_loss": 0.25}

  def __init__(self, params):
    super().__init__(
      params, layers=lambda: [tf_keras.layers.Dense(1, kernel_regularizer=tf_keras.regularizers.L2(0.01))]
    )

  def build_losses(self, labels, model_outputs, aux_losses=None):
    error = (model_outputs - labels)[:, 0]
    return {"near_loss": tf.square(error), "far_loss": tf.abs(error)}


class Summed(Terms):
  """The same, as one loss."""

  loss_terms = {}

  def build_losses(self, labels, model_outputs, aux_losses=None):
    terms = super().build_losses(labels, model_outputs)
    return terms["near_loss"] + 0.25 * terms["far_loss"]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_d8_the_terms_of_a_loss_are_reported_and_their_weighted_sum_is_the_loss(num_replicas):
  config = small_tasks.experiment(batch_size=3)  # Uneven over two replicas, as is the last batch of ten examples.
  trainer = small_tasks.build_trainer(config, task=Terms, num_replicas=num_replicas)
  summed = small_tasks.build_trainer(config, task=Summed, num_replicas=num_replicas)
  decayed = 0.01 * np.square(trainer.model.get_weights()[0]).sum()
  logs = small_tasks.train(trainer, 1)
  whole = logs["near_loss"] + 0.25 * logs["far_loss"] + decayed
  np.testing.assert_allclose(logs["training_loss"], whole, rtol=1e-6)
  reference = small_tasks.train(summed, 1)
  np.testing.assert_allclose(logs["training_loss"], reference["training_loss"], rtol=1e-6)
  assert set(logs) - set(reference) == {"near_loss", "far_loss"}
  small_tasks.train(trainer, 3)
  small_tasks.train(summed, 3)
  for weight, expected in zip(trainer.model.get_weights(), summed.model.get_weights(), strict=True):
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
  evaluated = small_tasks.evaluate(trainer)
  features, targets = trainer.task.validation
  errors = trainer.model(features).numpy() - targets
  np.testing.assert_allclose(evaluated["near_loss"], np.mean(np.square(errors)), rtol=1e-5)
  np.testing.assert_allclose(evaluated["far_loss"], np.mean(np.abs(errors)), rtol=1e-5)


def test_terms_that_are_not_those_that_were_named_are_refused():
  class Other(Terms):
    loss_terms = {"near_loss": 1.0, "far": 0.25}

  class LikeAMetric(Terms):
    loss_terms = {"near_loss": 1.0, "mae": 0.25}

  trainer = small_tasks.build_trainer(task=Other, evaluate=False)
  found = r"returned the terms \['near_loss', 'far_loss'\]; loss_terms names \['near_loss', 'far'\]"
  with pytest.raises(ValueError, match=found):
    small_tasks.train(trainer, 1)
  with pytest.raises(ValueError, match=r"\['mae'\] are there more than once"):
    small_tasks.build_trainer(task=LikeAMetric)


# ---- Strategies and parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker_mirrored"])
def test_m1_one_class_trains_evaluates_and_restores_under_every_strategy(tmp_path, strategy):
  def build(name, num_devices):
    config = small_tasks.experiment(optimizer_config=small_tasks.optimization("adam"))
    seed_everything(3)
    runtime = RuntimeConfig(distribution_strategy=name, num_virtual_devices=num_devices)
    with build_strategy(runtime).scope():
      task = small_tasks.Regression(config.task)
      optimizer = task.create_optimizer(config.trainer.optimizer_config)
      return Trainer(config, task, task.build_model(), optimizer)

  reference, trainer = build("off", 1), build(strategy, 1 if strategy == "one_device" else 2)
  for each in (reference, trainer):
    small_tasks.train(each, 4)
  for weight, expected in zip(trainer.model.get_weights(), reference.model.get_weights(), strict=True):
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
  assert small_tasks.evaluate(trainer) == pytest.approx(small_tasks.evaluate(reference), rel=1e-5)
  again = build(strategy, 1 if strategy == "one_device" else 2)
  again.checkpoint.read(trainer.checkpoint.write(str(tmp_path / "ckpt"))).assert_consumed()
  assert small_tasks.bits(again) == small_tasks.bits(trainer)


def test_m3_asking_for_a_coordinator_where_there_is_none_says_so():
  trainer = small_tasks.build_trainer(train=False)
  with pytest.raises(
    RuntimeError, match="there is no cluster coordinator: steps run in this process.*parameter_server"
  ):
    trainer.coordinator  # noqa: B018


def test_m9_gin_can_bind_the_arguments_of_the_trainer():
  try:
    gin.parse_config("official_trainer.Trainer.seed = 11")
    assert small_tasks.build_trainer(train=False).seed == 11
  finally:
    gin.clear_config()
  assert small_tasks.build_trainer(train=False).seed == 3
