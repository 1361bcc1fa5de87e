import numpy as np
import pytest
import tensorflow as tf

from official_trainer.errors import ConfigError
from official_trainer.optim.config import (
  ClipByGlobalNormConfig,
  ClipByNormConfig,
  ClipByValueConfig,
  CustomTransformConfig,
  GradientNoiseConfig,
  GradientTransformConfig,
)
from official_trainer.optim.transforms import build_transforms, register_gradient_transform

pytestmark = pytest.mark.usefixtures("logical_cpus")

GRADIENTS = [np.array([[3.0, 0.0], [1.0, 0.0]], np.float32), np.array([4.0, -0.5], np.float32)]
CLIP_ALL = GradientTransformConfig(type="clip_by_global_norm", clip_by_global_norm=ClipByGlobalNormConfig(norm=0.5))
CLIP_EACH = GradientTransformConfig(type="clip_by_norm", clip_by_norm=ClipByNormConfig(norm=2.0))
CLIP_VALUES = GradientTransformConfig(type="clip_by_value", clip_by_value=ClipByValueConfig(value=1.0))
NOISE = GradientTransformConfig(type="noise", noise=GradientNoiseConfig(eta=0.04, gamma=0.55))
CENTRE = GradientTransformConfig(type="centralize")


def transformed(*configs, step=0, seed=1, gradients=GRADIENTS):
  variables = [tf.Variable(tf.zeros(gradient.shape)) for gradient in gradients]
  pairs = list(zip(map(tf.constant, gradients), variables, strict=True))
  for transform in build_transforms(configs, seed):
    pairs = transform(pairs, tf.constant(step, tf.int64))
  return [tf.convert_to_tensor(gradient).numpy() for gradient, _ in pairs]


def test_clipping_by_the_global_norm_keeps_the_direction_of_all_together():
  norm = np.sqrt(sum((g**2).sum() for g in GRADIENTS))
  for clipped, gradient in zip(transformed(CLIP_ALL), GRADIENTS, strict=True):
    np.testing.assert_allclose(clipped, gradient * 0.5 / norm, rtol=1e-6)


def test_clipping_by_norm_looks_at_each_gradient():
  one, two = transformed(CLIP_EACH)
  np.testing.assert_allclose(np.linalg.norm(one), 2.0, rtol=1e-6)
  np.testing.assert_allclose(np.linalg.norm(two), 2.0, rtol=1e-6)


def test_clipping_by_value_cuts_components():
  assert transformed(CLIP_VALUES)[1].tolist() == [1.0, -0.5]


def test_centralisation_takes_the_mean_off_all_but_the_last_dimension_and_leaves_biases():
  kernel, bias = transformed(CENTRE)
  assert kernel.tolist() == [[1.0, 0.0], [-1.0, 0.0]]
  assert bias.tolist() == GRADIENTS[1].tolist()


def test_noise_is_a_function_of_seed_and_step_and_falls_with_the_step():
  def noise(step, seed=1):
    zeros = [np.zeros([100, 100], np.float32), np.zeros([100, 100], np.float32)]
    return transformed(NOISE, step=step, seed=seed, gradients=zeros)

  assert noise(3)[0].tobytes() == noise(3)[0].tobytes()
  assert noise(3)[0].tobytes() != noise(4)[0].tobytes()
  assert noise(3)[0].tobytes() != noise(3, seed=2)[0].tobytes()
  assert noise(3)[0].tobytes() != noise(3)[1].tobytes()
  for step in (0, 99):
    assert noise(step)[0].std() == pytest.approx(0.2 / (1 + step) ** 0.275, rel=0.03)


def test_transformations_are_applied_in_the_order_of_the_config():
  first = transformed(CLIP_VALUES, CLIP_ALL)
  other = transformed(CLIP_ALL, CLIP_VALUES)
  assert np.sqrt(sum((g**2).sum() for g in first)) == pytest.approx(0.5, rel=1e-6)
  assert not np.allclose(first[1], other[1])
  assert [str(t) for t in build_transforms([CLIP_VALUES, CLIP_ALL], 1)] == [
    "clip_by_value(value=1.0)",
    "clip_by_global_norm(norm=0.5)",
  ]


def test_sparse_gradients_are_clipped_as_they_are_and_made_dense_for_noise():
  variable = tf.Variable(tf.zeros([4, 2]))
  sparse = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([1]), tf.constant([4, 2]))
  (clip,), (noise,) = build_transforms([CLIP_ALL], 1), build_transforms([NOISE], 1)
  ((clipped, _),) = clip([(sparse, variable)], tf.constant(0, tf.int64))
  assert isinstance(clipped, tf.IndexedSlices)
  np.testing.assert_allclose(clipped.values, [[0.3, 0.4]], rtol=1e-6)
  ((noisy, _),) = noise([(sparse, variable)], tf.constant(0, tf.int64))
  assert noisy.shape == [4, 2] and (noisy.numpy() != 0).all()


def test_a_function_of_the_users_own_takes_its_arguments_from_the_config():
  @register_gradient_transform("tests/scaled")
  def scaled(gradients, variables, step, *, factor):
    assert len(variables) == len(gradients)
    return [gradient * factor * tf.cast(step, tf.float32) for gradient in gradients]

  own = GradientTransformConfig(
    type="custom", custom=CustomTransformConfig(name="tests/scaled", arguments={"factor": 2})
  )
  assert transformed(own, step=3)[1].tolist() == [24.0, -3.0]


def test_a_function_that_is_not_registered_is_refused_with_the_nearest():
  own = GradientTransformConfig(type="custom", custom=CustomTransformConfig(name="tests/halve"))
  with pytest.raises(ConfigError, match="there is no gradient transform 'tests/halve'. Did you mean 'tests/half'"):
    register_gradient_transform("tests/half")(lambda gradients, variables, step: gradients)
    build_transforms([own], 1)
