import numpy as np
import pytest
import tf_keras

from official_trainer.errors import ConfigError
from official_trainer.optim.batch_norm import freeze_batch_norm
from official_trainer.optim.config import BatchNormConfig
from tests import small_tasks
from tests.optim import grouped

pytestmark = pytest.mark.usefixtures("logical_cpus")


def changed(num_replicas=1, **frozen):
  trainer = grouped.build("sgd", rate=0.1, num_replicas=num_replicas, batch_norm=BatchNormConfig(**frozen))
  before = grouped.weights(trainer)
  small_tasks.train(trainer, 10)
  after = grouped.weights(trainer)
  return {path for path in before if before[path].tobytes() != after[path].tobytes()}


ALL = {
  "stem/kernel", "stem/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance", "block/kernel",
  "block/bias", "head/kernel", "head/bias",
}  # fmt: skip
STATISTICS = {"norm/moving_mean", "norm/moving_variance"}
AFFINE = {"norm/gamma", "norm/beta"}


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_d1_d17_statistics_and_affine_parameters_are_frozen_each_for_itself(num_replicas):
  assert changed(num_replicas) == ALL
  assert changed(num_replicas, freeze_statistics=("norm",)) == ALL - STATISTICS
  assert changed(num_replicas, freeze_affine=("norm",)) == ALL - AFFINE
  assert changed(num_replicas, freeze_statistics=("^norm$",), freeze_affine=(".",)) == ALL - STATISTICS - AFFINE


def test_a_layer_with_frozen_statistics_computes_the_same_in_training_as_in_evaluation():
  model = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.BatchNormalization(name="norm")])
  rows = np.random.default_rng(0).normal(2.0, 3.0, size=(8, 3)).astype(np.float32)
  assert (model(rows, training=True) != model(rows, training=False)).numpy().any()
  before = model.layers[0].moving_mean.numpy()
  assert freeze_batch_norm(model, BatchNormConfig(freeze_statistics=("norm",))) == []
  assert model(rows, training=True).numpy().tobytes() == model(rows, training=False).numpy().tobytes()
  assert model.layers[0].moving_mean.numpy().tobytes() == before.tobytes()


def test_patterns_that_match_no_layer_are_refused_all_at_once():
  with pytest.raises(ConfigError) as error:
    grouped.build(batch_norm=BatchNormConfig(freeze_statistics=("norn",), freeze_affine=("block",)))
  text = str(error.value)
  assert "trainer.batch_norm.freeze_statistics.0: 'norn' matches no layer of batch normalisation" in text
  assert "The nearest: 'norm'" in text
  assert "trainer.batch_norm.freeze_affine.0: 'block'" in text
