import gc
import logging

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.restoring import restore_exactly, restore_matching
from official_trainer.errors import CheckpointMismatch, ConfigError


def checkpoint(**values):
  return tf.train.Checkpoint(**{name: tf.Variable(value) for name, value in values.items()})


@pytest.fixture
def prefix(tmp_path):
  return checkpoint(a=1.0, b=[1.0, 2.0]).write(str(tmp_path / "ckpt-4"))


def test_every_value_is_restored(prefix):
  objects = checkpoint(a=0.0, b=[0.0, 0.0])
  restore_exactly(objects, prefix)
  assert objects.a.numpy() == 1.0
  assert objects.b.numpy().tolist() == [1.0, 2.0]


def test_a_mismatch_names_what_is_missing_what_is_unused_and_what_has_another_shape(prefix):
  objects = checkpoint(b=[0.0, 0.0, 0.0], c=[[0.0]])
  with pytest.raises(CheckpointMismatch) as raised:
    restore_exactly(objects, prefix)
  assert str(raised.value).splitlines() == [
    f"cannot restore {prefix}:",
    "  in the model, not in the checkpoint (1):",
    "    - c [1, 1]",
    "  in the checkpoint, not in the model (1):",
    "    + a []",
    "  shapes differ (1):",
    "    ! b [3] vs [2]",
    "It belongs to another model or another configuration; use the matching one, or another model_dir.",
    "To go on all the same, with initial values for these: --allow_checkpoint_mismatch=c,a,b",
  ]


def test_what_the_model_has_and_the_checkpoint_has_not_is_refused(prefix):
  with pytest.raises(CheckpointMismatch, match=r"- c \[\]"):
    restore_exactly(checkpoint(a=0.0, b=[0.0, 0.0], c=0.0), prefix)


def test_what_the_checkpoint_has_and_nobody_takes_is_refused(prefix):
  with pytest.raises(CheckpointMismatch, match=r"\+ b \[2\]"):
    restore_exactly(checkpoint(a=0.0), prefix)


def test_roots_that_were_not_asked_for_may_stay_unused(prefix):
  objects = checkpoint(a=0.0)
  restore_exactly(objects, prefix, unused_roots=("b", "c"))
  assert objects.a.numpy() == 1.0


def network(*units):
  layers = [tf_keras.layers.Dense(size) for size in units]
  return tf_keras.Sequential([tf_keras.layers.Input((3,)), *layers])


@pytest.mark.parametrize(
  ("units", "lists"),
  [
    ((4, 2), ["shapes differ"]),
    ((5, 5, 2), ["in the model, not in the checkpoint", "shapes differ"]),
    ((2,), ["in the checkpoint, not in the model", "shapes differ"]),
    ((5,), ["in the checkpoint, not in the model"]),
  ],
)
def test_another_network_is_refused_with_the_names(tmp_path, units, lists):
  prefix = tf.train.Checkpoint(model=network(5, 2)).write(str(tmp_path / "ckpt-1"))
  with pytest.raises(CheckpointMismatch) as raised:
    restore_exactly(tf.train.Checkpoint(model=network(*units)), prefix)
  for text in lists:
    assert text in str(raised.value)
  assert "model/layer_with_weights-" in str(raised.value)


def test_slots_of_another_optimizer_are_refused(tmp_path):
  def trained(optimizer):
    model = network(2)
    optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=optimizer)

  prefix = trained(tf_keras.optimizers.Adam()).write(str(tmp_path / "ckpt-1"))
  restore_exactly(trained(tf_keras.optimizers.Adam()), prefix)
  with pytest.raises(CheckpointMismatch, match=r"\+ optimizer/_variables/\d"):
    restore_exactly(trained(tf_keras.optimizers.SGD()), prefix)


def test_matching_takes_what_is_there_and_leaves_the_rest(prefix):
  objects = checkpoint(a=0.0, c=5.0)
  restore_matching(objects, prefix)
  assert (objects.a.numpy(), objects.c.numpy()) == (1.0, 5.0)


def test_matching_of_another_shape_is_a_mismatch(prefix):
  with pytest.raises(CheckpointMismatch, match=r"! b \[3\] vs \[2\]"):
    restore_matching(checkpoint(a=0.0, b=[0.0, 0.0, 0.0]), prefix)


def test_all_roots_that_the_objects_do_not_have_may_stay_unused(prefix):
  objects = checkpoint(a=0.0)
  restore_exactly(objects, prefix, unused_roots=None)
  assert objects.a.numpy() == 1.0


def test_half_of_a_root_is_refused_even_where_other_roots_may_stay_unused(tmp_path):
  model, step = network(2, 2), tf.Variable(1)
  prefix = tf.train.Checkpoint(model=model, step=step).write(str(tmp_path / "ckpt-1"))
  with pytest.raises(CheckpointMismatch, match=r"\+ model/layer_with_weights-1/kernel \[2, 2\]"):
    restore_exactly(tf.train.Checkpoint(model=network(2)), prefix, unused_roots=None)


def test_slots_of_a_legacy_optimizer_are_no_mismatch(tmp_path):
  def trained():
    model, optimizer = network(2), tf_keras.optimizers.legacy.Adam()
    optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer)

  prefix = trained().write(str(tmp_path / "ckpt-1"))
  again = trained()
  restore_exactly(again, prefix)
  model = network(2)
  restore_exactly(tf.train.Checkpoint(model=model), prefix, unused_roots=("optimizer",))
  assert model.layers[0].kernel.numpy().tolist() == again.model.layers[0].kernel.numpy().tolist()


def test_a_background_save_restores_as_any_other(tmp_path):
  saved = checkpoint(a=1.0)
  saved.write(str(tmp_path / "ckpt-1"), tf.train.CheckpointOptions(enable_async=True))
  saved.sync()
  objects = checkpoint(a=0.0)
  restore_exactly(objects, str(tmp_path / "ckpt-1"))
  assert objects.a.numpy() == 1.0


def test_what_is_named_may_differ_and_keeps_its_initial_value(tmp_path):
  prefix = tf.train.Checkpoint(model=network(5, 2)).write(str(tmp_path / "ckpt-1"))
  names = ["model/layer_with_weights-1", "model/layer_with_weights-2/bias", "model/layer_with_weights-2/kernel"]
  model = network(5, 3, 1)
  initial = [weight.numpy() for weight in model.weights]
  differing = restore_exactly(tf.train.Checkpoint(model=model), prefix, may_differ=names)
  assert sorted(differing) == [
    "model/layer_with_weights-1/bias",
    "model/layer_with_weights-1/kernel",
    "model/layer_with_weights-2/bias",
    "model/layer_with_weights-2/kernel",
  ]
  stored = tf.train.load_checkpoint(prefix).get_tensor("model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE")
  np.testing.assert_array_equal(model.weights[0].numpy(), stored)
  for weight, value in zip(model.weights[2:], initial[2:], strict=True):
    np.testing.assert_array_equal(weight.numpy(), value)


def test_what_is_named_and_matches_is_restored_so_that_the_flag_may_stay(prefix):
  objects = checkpoint(a=0.0, b=[0.0, 0.0])
  assert restore_exactly(objects, prefix, may_differ=["b"]) == []
  assert objects.b.numpy().tolist() == [1.0, 2.0]


# TensorFlow takes "ckpt-1" for a folder there, and found no checkpoint in it.
def test_what_is_named_may_differ_on_file_systems_without_folders():
  prefix = checkpoint(a=1.0, b=[1.0, 2.0]).write("ram://restoring/ckpt-1")
  objects = checkpoint(a=0.0, b=[0.0])
  assert restore_exactly(objects, prefix, may_differ=["b"]) == ["b"]
  assert objects.a.numpy() == 1.0
  tf.io.gfile.rmtree("ram://restoring")


def test_what_differs_and_is_not_named_is_still_refused(prefix):
  objects = checkpoint(a=[0.0], b=[0.0])
  with pytest.raises(CheckpointMismatch, match=r"! a \[1\] vs \[\]"):
    restore_exactly(objects, prefix, may_differ=["b"])
  assert objects.b.numpy().tolist() == [0.0]


def test_a_name_that_is_nowhere_is_refused_with_the_nearest(prefix):
  with pytest.raises(ConfigError, match="names 'bb', which is in neither the model nor .*Did you mean 'b'"):
    restore_exactly(checkpoint(a=0.0, b=[0.0]), prefix, may_differ=["bb"])


def test_slots_of_a_legacy_optimizer_cannot_be_restored_in_part(tmp_path):
  model, optimizer = network(2), tf_keras.optimizers.legacy.Adam()
  optimizer._create_all_weights(model.trainable_variables)
  prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "ckpt-1"))
  with pytest.raises(CheckpointMismatch, match="legacy optimizer"):
    restore_exactly(tf.train.Checkpoint(model=network(3)), prefix, unused_roots=["optimizer"], may_differ=["model"])


# Names of variables were compared without the escapes that TensorFlow writes: such a run could not be resumed.
def test_a_key_that_holds_a_slash_or_a_dot_is_restored(tmp_path):
  model = tf.Module()
  model.heads = {"a/b": tf.Variable(1.0), "a.b": tf.Variable(2.0)}
  written = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
  for may_differ in ((), ("model",)):
    for head in model.heads.values():
      head.assign(5.0)
    restore_exactly(tf.train.Checkpoint(model=model), written, may_differ=may_differ)
    assert [float(head) for head in model.heads.values()] == [1.0, 2.0]


# The flag had to go once a checkpoint without the removed variable was written: the same command then failed.
def test_the_name_of_a_variable_that_was_removed_may_stay_too(tmp_path, prefix):
  smaller = checkpoint(a=0.0)
  assert restore_exactly(smaller, prefix, may_differ=["b"]) == ["b"]
  after = smaller.write(str(tmp_path / "after"))
  assert restore_exactly(smaller, after, may_differ=["b"]) == []


@pytest.mark.parametrize("wanted", [{"a": 1.0}, {"b": [0.0, 0.0, 0.0]}, {"a": 0.0, "b": [0.0, 0.0], "c": 0.0}])
def test_a_refused_checkpoint_leaves_no_warnings_that_come_long_after(prefix, caplog, wanted):
  with caplog.at_level(logging.WARNING):
    with pytest.raises(CheckpointMismatch):
      restore_exactly(checkpoint(**wanted), prefix)
    gc.collect()  # TensorFlow complains of what it did not find when its memory is freed.
  assert caplog.text == ""
