"""A trainer from outside: weights, snapshots, losses, another run."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.errors import CheckpointMismatch, ConfigError
from official_trainer.optim.config import EmaConfig
from tests import small_tasks


def build(num_replicas=1, layers=small_tasks.everything, **kwargs):
  optimizer = small_tasks.optimization("adam", ema=EmaConfig(average_decay=0.5))
  config = small_tasks.experiment(optimizer_config=optimizer)
  return small_tasks.build_trainer(
    config, task=lambda params: small_tasks.Regression(params, layers=layers), num_replicas=num_replicas, **kwargs
  )


@pytest.fixture(scope="module", params=[1, 2])
def trainer(request):
  """After two steps, with statistics, masks and averages. Its tests leave it as it is, or say so."""
  built = build(request.param)
  small_tasks.train(built, 2)
  return built


# ---- Weights ---------------------------------------------------------------------------------------------------------


def test_weights_are_the_raw_ones_also_while_the_averages_are_in_their_place(trainer):
  before = small_tasks.bits(trainer)
  raw = trainer.get_weights()
  with trainer.strategy.scope(), trainer.state.ema.swapped_in(trainer.state.step):
    for one, other in zip(trainer.get_weights(), raw, strict=True):
      np.testing.assert_array_equal(one, other)
    trainer.set_weights(raw)
  assert small_tasks.bits(trainer) == before


def test_weights_of_another_shape_are_refused_and_nothing_is_changed(trainer):
  before = small_tasks.bits(trainer)
  weights = trainer.get_weights()
  with pytest.raises(ValueError, match=r"2 values have another shape: dense.*/kernel:0 \(3, 8\), got \(8, 3\); .*bias"):
    trainer.set_weights([weights[0].T, np.zeros([1]), *weights[2:]])
  with pytest.raises(ValueError, match=f"there are {len(weights)} variables, got 1 values"):
    trainer.set_weights(weights[:1])
  assert small_tasks.bits(trainer) == before


def test_averages_go_on_from_new_weights_only_when_told():
  trainer = build(layers=small_tasks.linear)
  small_tasks.train(trainer, 2)
  averages = trainer.snapshot().averages
  weights = [np.full_like(weight, 7.0) for weight in trainer.get_weights()]
  trainer.set_weights(weights)
  for one, other in zip(trainer.snapshot().averages, averages, strict=True):
    np.testing.assert_array_equal(one, other)
  trainer.set_weights(weights, restart_averages=True)
  for one, other in zip(trainer.snapshot().averages, weights, strict=True):
    np.testing.assert_array_equal(one, other)


# ---- Snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_stays_as_it_is_while_training_goes_on():
  trainer = build(layers=small_tasks.linear)
  snapshot = trainer.snapshot()
  kernel = snapshot.weights[0].copy()
  small_tasks.train(trainer, 1)
  np.testing.assert_array_equal(snapshot.weights[0], kernel)
  assert not np.array_equal(trainer.get_weights()[0], kernel)


# ---- The loss of a batch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 8])
def test_the_loss_of_any_number_of_rows_is_their_mean(trainer, size):
  features, labels = small_tasks.rows(size, seed=2)
  expected = np.mean(np.square(trainer.model(features, training=False).numpy() - labels))
  assert trainer.compute_loss((features, labels)) == pytest.approx(expected, rel=1e-5)


def test_a_loss_in_training_mode_is_with_batch_statistics_and_masks(trainer):
  batch = small_tasks.rows(6, seed=2)
  assert trainer.compute_loss(batch, training=True) != trainer.compute_loss(batch)


def test_training_goes_on_as_if_nobody_had_asked_for_a_loss():
  asked, left_alone = build(), build()
  for trainer in (asked, left_alone):
    small_tasks.train(trainer, 2)
  asked.compute_loss(small_tasks.rows(6, seed=2), training=True)
  one, other = small_tasks.train(asked, 2), small_tasks.train(left_alone, 2)
  assert one == other
  assert small_tasks.bits(asked) == small_tasks.bits(left_alone)


def test_a_task_of_another_library_has_no_such_loss(trainer, monkeypatch):
  monkeypatch.setattr(trainer, "_task", object())
  with pytest.raises(TypeError, match="compute_loss needs a task of official_trainer, got a object"):
    trainer.compute_loss(small_tasks.rows(2))


# ---- Another run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The model_dir of a run of four steps."""
  path = tmp_path_factory.mktemp("run")
  small_tasks.session(build(), path, "train").run()
  return path


def test_a_run_in_another_folder_by_the_same_trainer_is_that_of_a_new_one(folder, tmp_path):
  trainer = build()
  small_tasks.train(trainer, 3)
  trainer.reset()
  small_tasks.session(trainer, tmp_path, "train").run()
  reader, other = (tf.train.load_checkpoint(str(path / "ckpt-8")) for path in (folder, tmp_path))
  for name in reader.get_variable_to_shape_map():
    if "OBJECT_GRAPH" not in name:
      np.testing.assert_array_equal(reader.get_tensor(name), other.get_tensor(name), err_msg=name)


def test_a_fresh_run_may_begin_with_the_weights_of_a_checkpoint(folder):
  trainer = build()
  begun = trainer.snapshot()
  small_tasks.train(trainer, 1)
  assert trainer.reset(init_checkpoint=str(folder)) == 0
  reader = tf.train.load_checkpoint(str(folder / "ckpt-8"))
  key = "model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
  np.testing.assert_array_equal(trainer.get_weights()[0], reader.get_tensor(key))
  snapshot = trainer.snapshot()
  for one, other in zip(snapshot.slots, begun.slots, strict=True):
    np.testing.assert_array_equal(one, other)
  for one, other in zip(snapshot.averages, snapshot.weights, strict=True):
    np.testing.assert_array_equal(one, other)


def test_a_checkpoint_that_is_not_there_or_of_another_model_is_refused(folder, tmp_path):
  trainer = build(layers=small_tasks.linear)
  with pytest.raises(ConfigError, match="init_checkpoint: there is no checkpoint at '.*nowhere'"):
    trainer.reset(init_checkpoint=str(tmp_path / "nowhere"))
  with pytest.raises(CheckpointMismatch):
    trainer.reset(init_checkpoint=str(folder))
  with pytest.raises(CheckpointMismatch):
    trainer.reset(str(folder))


def test_a_model_that_is_not_the_tasks_cannot_begin_anew():
  trainer = build(layers=small_tasks.linear)
  trainer.task.layers = lambda: [tf_keras.layers.Dense(2)]
  with pytest.raises(ValueError, match="2 values have another shape"):
    trainer.reset()
