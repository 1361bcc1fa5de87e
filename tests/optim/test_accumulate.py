import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.distribute.config import RuntimeConfig
from official_trainer.errors import ConfigError
from official_trainer.optim.config import EmaConfig, GradientTransformConfig
from tests import small_tasks
from tests.optim import grouped

pytestmark = pytest.mark.usefixtures("logical_cpus")

STEPS = 20


def trained(parts, *, num_replicas=1, batch_size=8, steps=STEPS, rows=24, task=small_tasks.Regression, **settings):
  config = small_tasks.experiment(
    batch_size=batch_size,
    optimizer_config=settings.pop("optimizer_config", small_tasks.optimization("adam", 0.01)),
    gradient_accumulation_steps=parts,
    **settings,
  )
  trainer = small_tasks.build_trainer(
    config,
    task=lambda params: task(params, train=small_tasks.rows(rows), layers=grouped.plain),
    num_replicas=num_replicas,
  )
  logs = small_tasks.train(trainer, steps)
  return trainer, logs


def assert_same_training(one, other):
  (trainer, logs), (reference, expected) = one, other
  for path, value in grouped.weights(reference).items():
    np.testing.assert_allclose(grouped.weights(trainer)[path], value, atol=1e-6, err_msg=path)
  assert logs == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_four_parts_are_the_whole_batch_after_twenty_updates(num_replicas):
  assert_same_training(trained(4, num_replicas=num_replicas), trained(1))


@pytest.mark.parametrize("num_replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_parts_with_an_uneven_number_of_examples_count_by_their_examples(num_replicas):
  # 7 examples in 4 parts on each replica: some hold fewer than others, some none.
  assert_same_training(trained(4, num_replicas=num_replicas, batch_size=7), trained(1, batch_size=7))


def test_the_last_batch_of_a_pipelines_epoch_counts_by_its_examples():
  pipeline = {"task": small_tasks.PipelineRegression, "rows": 10, "train_data": {"drop_remainder": False}}
  assert_same_training(trained(4, **pipeline), trained(1, **pipeline))


def test_an_update_of_several_parts_is_one_update_everywhere():
  trainer, _ = trained(4, steps=6, optimizer_config=small_tasks.optimization("adam", ema=EmaConfig(average_decay=0.9)))
  reference, _ = trained(
    1, steps=6, optimizer_config=small_tasks.optimization("adam", ema=EmaConfig(average_decay=0.9))
  )
  assert int(trainer.global_step) == int(trainer.optimizer.iterations) == 6
  for one, other in zip(trainer.state.ema.averages, reference.state.ema.averages, strict=True):
    np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)


@pytest.mark.parametrize("num_replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_clipping_sees_the_gradient_of_the_whole_batch(num_replicas):
  clip = GradientTransformConfig(type="clip_by_global_norm")
  optimization = dataclasses.replace(small_tasks.optimization("sgd", 0.1), gradient_transforms=(clip,))
  settings = {"optimizer_config": optimization, "log_norms": "total"}
  assert_same_training(trained(4, num_replicas=num_replicas, **settings), trained(1, **settings))


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_part_that_is_not_finite_leaves_the_whole_update_out(num_replicas):
  def last_loss(poisoned):
    train = small_tasks.rows(24)
    if poisoned:
      train[0][5] = np.nan
    config = small_tasks.experiment(
      batch_size=8, gradient_accumulation_steps=4, skip_nonfinite_updates=True, train_data={"shuffle": False}
    )
    trainer = small_tasks.build_trainer(
      config, task=lambda params: small_tasks.Regression(params, train=train), num_replicas=num_replicas
    )
    before = trainer.model.get_weights()
    first = small_tasks.train(trainer, 1)
    same = all(map(np.array_equal, trainer.model.get_weights(), before))
    return first, same, small_tasks.train(trainer, 1)

  first, same, second = last_loss(True)
  assert first["skipped_updates"] == 1 and "training_loss" not in first and same
  assert second["skipped_updates"] == 0 and np.isfinite(second["training_loss"])
  assert not last_loss(False)[1]


def test_each_part_draws_masks_of_its_own():
  config = small_tasks.experiment(batch_size=8, gradient_accumulation_steps=8)
  alike = (np.ones([24, 3], np.float32), np.zeros([24, 1], np.float32))
  layers = [tf_keras.layers.Dropout(0.5, name="drop"), tf_keras.layers.Dense(1, name="head")]
  trainer = small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, train=alike, layers=lambda: layers)
  )
  trainer.model.layers[-1].kernel.assign([[1.0], [1.0], [1.0]])
  loss = small_tasks.train(trainer, 1)["training_loss"]
  # All rows are alike: with one mask for all eight parts, the loss would be one of those that a single row can have.
  assert min(abs(loss - single) for single in (0.0, 4.0, 16.0, 36.0)) > 0.1


def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path):
  whole, _ = trained(4, steps=6)
  first, _ = trained(4, steps=3)
  path = first.checkpoint.write(str(tmp_path / "ckpt"))
  second, _ = trained(4, steps=0)
  second.checkpoint.read(path).assert_consumed()
  second.state.unpack()
  small_tasks.train(second, 3)
  assert small_tasks.bits(second) == small_tasks.bits(whole)


def test_it_works_with_loss_scaling_and_on_python_loops():
  runtime = RuntimeConfig(seed=3, mixed_precision_dtype="float16", loss_scale="dynamic")
  trainer, logs = trained(2, steps=3, runtime=runtime)
  assert int(trainer.global_step) == 3 and np.isfinite(logs["training_loss"])
  eager = {"train_tf_function": False, "train_tf_while_loop": False}
  assert_same_training(trained(2, steps=3, **eager), trained(2, steps=3))


def test_a_task_that_gives_means_is_updated_by_the_mean_of_its_parts():
  class Means(small_tasks.Regression):
    """Scales its loss itself, as Model Garden's tasks do."""

    def train_step(self, inputs, model, optimizer, metrics=None, mask=None):
      features, labels = inputs
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features, training=True) - labels))
        scaled = loss / tf.distribute.get_strategy().num_replicas_in_sync
      optimizer.apply_gradients(
        zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables, strict=True)
      )
      return {self.loss: loss}

  assert_same_training(trained(4, task=Means), trained(1, task=Means))


def test_a_supplied_dataset_that_does_not_divide_is_refused():
  config = small_tasks.experiment(gradient_accumulation_steps=4)
  data = tf.data.Dataset.from_tensor_slices(small_tasks.rows(24)).batch(6, drop_remainder=True)
  trainer = small_tasks.build_trainer(config, train_dataset=data)
  with pytest.raises(ValueError, match=r"gradient_accumulation_steps \(4\) must divide each replica's batch, got 6"):
    small_tasks.train(trainer, 1)


def test_parameter_servers_refuse_it_by_name():
  from official_trainer.config.trainer import TrainerConfig
  from official_trainer.requirements import require_asynchronous

  options = TrainerConfig(gradient_accumulation_steps=2)
  with pytest.raises(ConfigError, match="trainer.gradient_accumulation_steps: must be 1 under parameter servers"):
    require_asynchronous(small_tasks.strategy_of(1), options, RuntimeConfig())
