import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.config.experiment import TaskConfig
from official_trainer.data.config import DataConfig
from official_trainer.task import LOSS_WEIGHT, Task
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.fixture
def task():
  return small_tasks.Regression(TaskConfig())


@pytest.fixture
def model(task):
  return task.build_model()


def batch(size=4):
  return tuple(tf.constant(part) for part in small_tasks.rows(size))


def test_what_must_be_written_says_so():
  task = Task(TaskConfig())
  with pytest.raises(NotImplementedError, match="Task must override build_model"):
    task.build_model()
  with pytest.raises(NotImplementedError, match=r"must override build_source\(\).*or build_inputs\(\)"):
    task.build_inputs(DataConfig(global_batch_size=1))
  assert task.build_source(DataConfig()) is None
  assert task.build_metrics() == []
  assert task.aggregate_logs(None, {}) is None
  assert task.reduce_aggregated_logs({}) == {}


def test_config_and_folder_are_kept():
  config = TaskConfig(name="mine")
  task = Task(config, logging_dir="/tmp/x", name="mine")
  assert (task.task_config, task.logging_dir, task.name) == (config, "/tmp/x", "mine")
  assert Task(config).logging_dir == ""


def test_differential_privacy_is_refused():
  with pytest.raises(ValueError, match="not supported; override `create_optimizer`"):
    Task.create_optimizer(small_tasks.optimization(), None, dp_config=object())


def test_losses_may_be_one_for_each_example_or_their_mean(task, model):
  class Mean(small_tasks.Regression):
    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(super().build_losses(labels, model_outputs))

  each = task.validation_step(batch(), model)
  mean = Mean(TaskConfig()).validation_step(batch(), model)
  np.testing.assert_allclose(each["loss"], mean["loss"], rtol=1e-6)
  assert each[LOSS_WEIGHT] == mean[LOSS_WEIGHT] == 4.0


def test_auxiliary_losses_are_added_once_for_either_convention():
  class Regularised(small_tasks.Regression):
    def build_model(self):
      inputs = tf_keras.layers.Input((small_tasks.FEATURES,))
      dense = tf_keras.layers.Dense(1, kernel_regularizer=tf_keras.regularizers.l2(1.0))
      return tf_keras.Model(inputs, dense(inputs))

  class Scalar(Regularised):
    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_mean(super().build_losses(labels, model_outputs)) + tf.add_n(aux_losses)

  model = Regularised(TaskConfig()).build_model()
  features, labels = batch()
  kernel = model.trainable_variables[0].numpy()
  expected = np.mean(np.square(model(features) - labels)) + np.sum(np.square(kernel))
  for kind in (Regularised, Scalar):
    logs = kind(TaskConfig()).validation_step((features, labels), model)
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-6)


def test_masked_examples_do_not_count_in_loss_weight_or_metrics(task, model):
  features, labels = batch(4)
  mask = tf.constant([1.0, 1.0, 0.0, 0.0])
  (metric,) = metrics = task.build_metrics()
  spoiled = tf.concat([labels[:2], [[np.nan], [1e30]]], axis=0)
  metric.update_state([[0.0]], [[0.0]], sample_weight=[0.0])
  logs = task.validation_step((features, tf.where(tf.math.is_nan(spoiled), 7.0, spoiled)), model, metrics, mask=mask)
  errors = (model(features) - labels).numpy()[:2]
  np.testing.assert_allclose(logs["loss"], np.mean(errors**2), rtol=1e-6)
  np.testing.assert_allclose(metric.result(), np.mean(np.abs(errors)), rtol=1e-6)
  assert logs[LOSS_WEIGHT] == 2.0
  assert np.isfinite(task.validation_step((features, spoiled), model, mask=mask)["loss"])


def test_a_batch_of_padding_only_has_loss_and_weight_zero(task, model):
  logs = task.validation_step(batch(), model, mask=tf.zeros([4]))
  assert (float(logs["loss"]), float(logs[LOSS_WEIGHT])) == (0.0, 0.0)


def test_features_may_be_their_own_labels():
  class Auto(small_tasks.Regression):
    def build_losses(self, labels, model_outputs, aux_losses=None):
      return tf.reduce_sum(tf.square(labels), axis=1)

  task = Auto(TaskConfig())
  features = batch()[0]
  logs = task.validation_step(features, task.build_model())
  np.testing.assert_allclose(logs["loss"], np.mean(np.sum(np.square(features), axis=1)), rtol=1e-6)


def test_a_training_step_moves_the_weights_along_the_gradient_of_the_mean(task, model):
  features, labels = (part.numpy() for part in batch())
  kernel, bias = model.get_weights()
  optimizer = tf_keras.optimizers.SGD(0.1)
  optimizer.build(model.trainable_variables)
  logs = task.train_step((tf.constant(features), tf.constant(labels)), model, optimizer)
  errors = features @ kernel + bias - labels
  np.testing.assert_allclose(logs["loss"], np.mean(errors**2), rtol=1e-6)
  np.testing.assert_allclose(model.get_weights()[0], kernel - 0.2 * features.T @ errors / 4, rtol=1e-5)
  np.testing.assert_allclose(model.get_weights()[1], bias - 0.2 * np.mean(errors), rtol=1e-5, atol=1e-7)


def test_metrics_of_the_model_are_the_models_to_update(task, model):
  own = tf_keras.metrics.Mean(name="own")
  model.own = own
  assert any(metric is own for metric in model.metrics)
  (mae,) = task.build_metrics()
  task.validation_step(batch(), model, [mae, *model.metrics])
  assert own.count.numpy() == 0.0 and mae.result().numpy() > 0


def saved(tmp_path, **items):
  return tf.train.Checkpoint(**items).write(str(tmp_path / "ckpt-7"))


def test_initialising_takes_the_weights_of_a_checkpoint(tmp_path, task, model):
  path = saved(tmp_path, model=model, optimizer=tf.Variable(1.0))
  other = task.build_model()
  small_tasks.Regression(TaskConfig(init_checkpoint=path)).initialize(other)
  np.testing.assert_equal(other.get_weights(), model.get_weights())


def test_initialising_takes_the_newest_of_a_folder(tmp_path, task, model):
  manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path), max_to_keep=2)
  manager.save()
  model.set_weights([w + 1 for w in model.get_weights()])
  manager.save()
  other = task.build_model()
  small_tasks.Regression(TaskConfig(init_checkpoint=str(tmp_path))).initialize(other)
  np.testing.assert_equal(other.get_weights(), model.get_weights())


def test_initialising_honours_the_models_checkpoint_items(tmp_path, task, model):
  path = saved(tmp_path, head=model.layers[-1])
  other = task.build_model()
  other.checkpoint_items = {"head": other.layers[-1]}
  small_tasks.Regression(TaskConfig(init_checkpoint=path)).initialize(other)
  np.testing.assert_equal(other.get_weights(), model.get_weights())


def test_initialising_from_nothing_is_refused(tmp_path, model):
  with pytest.raises(ValueError, match="task.init_checkpoint: no checkpoint at"):
    small_tasks.Regression(TaskConfig(init_checkpoint=str(tmp_path / "ckpt-9"))).initialize(model)
  with pytest.raises(ValueError, match="task.init_checkpoint: no checkpoint at"):
    small_tasks.Regression(TaskConfig(init_checkpoint=str(tmp_path))).initialize(model)


def test_initialising_from_another_model_is_refused(tmp_path, model):
  path = saved(tmp_path, model=tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.ReLU()]))
  with pytest.raises((AssertionError, ValueError)):
    small_tasks.Regression(TaskConfig(init_checkpoint=path)).initialize(model)


def test_inputs_are_derived_from_the_source(task):
  train = task.build_inputs(DataConfig(global_batch_size=6, is_training=True, seed=1))
  features, labels = next(iter(train))
  assert (features.shape, labels.shape) == ((6, 3), (6, 1))
  validation = task.build_inputs(DataConfig(global_batch_size=6, is_training=False))
  assert [len(labels) for _, labels in validation] == [6, 4]
