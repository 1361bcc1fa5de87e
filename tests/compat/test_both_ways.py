"""Tasks written for Model Garden run here unchanged, and ours run there."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.core import exp_factory, train_lib
from official.modeling import optimization
from official.nlp.configs import bert, encoders, pretraining_experiments  # noqa: F401  # The last registers.
from official.nlp.data import pretrain_dataloader
from official.nlp.tasks import masked_lm
from official.utils.testing import mock_task

from official_trainer import registry
from official_trainer.compat.model_garden import run_experiment
from official_trainer.run.named_classes import resolve_task_class
from official_trainer.trainer import Trainer
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def mock_config(**trainer):
  config = exp_factory.get_exp_config("mock")
  config.override({
    "task": {"train_data": {"global_batch_size": 2}, "validation_data": {"global_batch_size": 2}},
    "trainer": {
      "train_steps": 4,
      "steps_per_loop": 2,
      "checkpoint_interval": 2,
      "validation_interval": 2,
      "validation_steps": 3,
      "optimizer_config": {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
      },
      **trainer,
    },
  }, is_strict=False)  # fmt: skip
  return config


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ema", [False, True])
def test_a_task_and_config_of_model_garden_train_and_evaluate(tmp_path, num_replicas, ema):
  config = mock_config()
  if ema:
    config.trainer.optimizer_config.ema = {"average_decay": 0.9}
  strategy = small_tasks.strategy_of(num_replicas)
  with strategy.scope():
    task = mock_task.MockTask(config.task)
  model, logs = run_experiment(
    strategy, task, "train_and_eval", config, str(tmp_path), run_post_eval=True, save_summary=False
  )
  assert logs["counter"] == 3.0 * num_replicas
  assert {"acc", "validation_loss"} <= logs.keys()
  assert (model.trainable_variables[1].numpy() < 1.0).all()  # The loss is the output: its gradient by the bias is 1.
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-4")


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_task_of_model_garden_stopped_and_resumed_ends_with_the_same_weights(tmp_path, num_replicas):
  def run(folder, *stops):
    for stop in stops:
      config = mock_config(train_steps=stop)
      strategy = small_tasks.strategy_of(num_replicas)
      with strategy.scope():
        task = mock_task.MockTask(config.task)
      config.runtime.seed = 5  # Ours; their config objects take any attribute through `override` only.
      model, _ = run_experiment(strategy, task, "train", config, str(tmp_path / folder), save_summary=False)
    return [weight.tobytes() for weight in model.get_weights()]

  assert run("whole", 4) == run("parts", 2, 4)


def bert_config():
  """The registered experiment bert/pretraining, tiny, on the random data that its task makes without files."""
  config = exp_factory.get_exp_config("bert/pretraining")
  config.task.model = bert.PretrainerConfig(
    encoder=encoders.EncoderConfig(
      bert=encoders.BertEncoderConfig(
        vocab_size=40, hidden_size=8, num_layers=1, num_attention_heads=2, intermediate_size=16, dropout_rate=0.1
      )
    ),
    cls_heads=[bert.ClsHeadConfig(inner_dim=4, num_classes=2, name="next_sentence")],
  )
  data = {"input_path": "dummy", "max_predictions_per_seq": 4, "seq_length": 16, "global_batch_size": 2}
  config.task.train_data = pretrain_dataloader.BertPretrainDataConfig(is_training=True, **data)
  config.task.validation_data = pretrain_dataloader.BertPretrainDataConfig(is_training=False, **data)
  trainer = config.trainer
  trainer.train_steps, trainer.steps_per_loop, trainer.checkpoint_interval = 2, 2, 2
  trainer.validation_interval, trainer.validation_steps = 2, 2
  rate = trainer.optimizer_config.learning_rate.polynomial
  rate.initial_learning_rate, rate.decay_steps = 1e-3, 10
  trainer.optimizer_config.warmup.polynomial.warmup_steps = 2
  return config


@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_registered_experiment_of_model_garden_trains(tmp_path, num_replicas):
  config = bert_config()
  strategy = small_tasks.strategy_of(num_replicas)
  with strategy.scope():
    task = masked_lm.MaskedLMTask(config.task)
  model, logs = run_experiment(
    strategy, task, "train_and_eval", config, str(tmp_path), run_post_eval=True, save_summary=False
  )
  assert all(np.isfinite(weight).all() for weight in model.get_weights())
  assert {"validation_loss", "masked_lm_accuracy", "lm_example_loss", "next_sentence_accuracy"} <= logs.keys()
  assert np.isfinite(float(logs["validation_loss"]))


def test_our_trainer_takes_their_config_object():
  config = mock_config()
  task = mock_task.MockTask(config.task)
  optimizer = optimization.ExponentialMovingAverage(tf_keras.optimizers.legacy.SGD(0.1))
  trainer = Trainer(config, task, task.build_model(), optimizer)
  assert trainer.config is config
  small_tasks.train(trainer, 2)
  assert small_tasks.evaluate(trainer, 2)["counter"] == 2.0


@pytest.mark.parametrize("name", ["digits/cnn", "digits/mlp"])
@pytest.mark.parametrize("num_replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_our_tasks_and_configs_run_under_model_gardens_train_lib(tmp_path, name, num_replicas):
  config = registry.get_experiment(name)()
  config = dataclasses.replace(
    config,
    trainer=dataclasses.replace(
      config.trainer, train_steps=4, steps_per_loop=2, validation_interval=4, checkpoint_interval=4,
      best_checkpoint_metric_comp="higher",
    ),
  )  # fmt: skip
  strategy = small_tasks.strategy_of(num_replicas)
  with strategy.scope():
    task = resolve_task_class(config.task.task_class)(config.task)
  _, logs = train_lib.run_experiment(
    strategy, task, "train_and_eval", config, str(tmp_path), run_post_eval=True, save_summary=False
  )
  assert 0.0 <= float(logs["accuracy"]) <= 1.0
  assert np.isfinite(float(logs["validation_loss"]))
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-4")
