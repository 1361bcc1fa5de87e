import tensorflow as tf
import tf_keras

from official_trainer.optim.variable_paths import variable_paths
from tests.small_tasks import strategy_of

layers = tf_keras.layers


def names(model):
  return [path for path, _ in variable_paths(model)]


def branch(name):
  inputs = layers.Input((2,))
  return tf_keras.Model(inputs, layers.Dense(2, name="dense")(inputs), name=name)


class Block(layers.Layer):
  """Layers in a list, two of one name, and weights of its own."""

  def __init__(self, shared=None, **kwargs):
    super().__init__(**kwargs)
    self.inner = [layers.Dense(2, name="dense"), layers.Dense(2, name="dense")]
    self.shared = shared

  def build(self, shape):
    self.scale = self.add_weight(name="scale", shape=())
    self.steps = self.add_weight(name="steps", shape=(), trainable=False)

  def call(self, inputs):
    for layer in self.inner:
      inputs = layer(inputs)
    return inputs * self.scale if self.shared is None else self.shared(inputs) * self.scale


class Outer(tf_keras.Model):
  def __init__(self):
    super().__init__()
    shared = layers.Dense(2, use_bias=False, name="shared")
    self.first = Block(shared, name="first")
    self.second = Block(shared, name="second")

  def call(self, inputs):
    return self.second(self.first(inputs))


def nested():
  inputs = layers.Input((2,))
  joined = layers.Concatenate(name="joined")([branch("left")(inputs), branch("right")(inputs)])
  return tf_keras.Model(inputs, layers.BatchNormalization(name="norm")(joined))


def test_equal_layers_of_nested_models_are_told_apart_where_their_variables_have_one_name():
  model = nested()
  assert [v.name for v in model.variables].count("dense/kernel:0") == 2
  assert names(model) == [
    "left/dense/kernel",
    "left/dense/bias",
    "right/dense/kernel",
    "right/dense/bias",
    "norm/gamma",
    "norm/beta",
    "norm/moving_mean",
    "norm/moving_variance",
  ]


def test_equal_names_inside_one_layer_are_numbered_and_a_shared_layer_has_its_first_path():
  model = Outer()
  model(tf.zeros((1, 2)))
  inner = ["dense/kernel", "dense/bias", "dense#2/kernel", "dense#2/bias"]
  assert names(model) == [
    *[f"first/{name}" for name in ["scale", "steps", *inner, "shared/kernel"]],
    *[f"second/{name}" for name in ["scale", "steps", *inner]],
  ]


def test_each_variable_occurs_once_and_keeps_its_path_when_it_is_frozen():
  model = nested()
  before = [(path, id(variable)) for path, variable in variable_paths(model)]
  model.get_layer("left").trainable = False
  assert [(path, id(variable)) for path, variable in variable_paths(model)] == before
  assert {key for _, key in before} == {id(variable) for variable in model.variables}
  assert len({path for path, _ in before}) == len(before) == len(model.variables)


def test_paths_are_the_same_under_a_strategy_and_in_mixed_precision():
  expected = names(nested())
  with strategy_of(2).scope():
    mirrored = nested()
  assert names(mirrored) == expected
  tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
  try:
    assert names(nested()) == expected
  finally:
    tf_keras.mixed_precision.set_global_policy("float32")


class Pair(tf.Module):
  def __init__(self):
    super().__init__(name="pair")
    self.one = tf.Variable(1.0, name="weight")
    self.two = tf.Variable(2.0, name="weight")


class WithModule(tf_keras.Model):
  """A module that is no layer, a list of plain variables, and a variable that only `variables` knows."""

  def __init__(self):
    super().__init__()
    self.pair = Pair()
    self.offsets = [tf.Variable(0.0, name="offset"), tf.Variable(0.0, name="offset")]
    object.__setattr__(self, "hidden", tf.Variable(0.0, name="elsewhere/hidden"))

  @property
  def variables(self):
    return [*super().variables, self.hidden]

  def call(self, inputs):
    return inputs


def test_variables_of_modules_and_of_unusual_models_are_named_as_well():
  model = WithModule()
  model(tf.zeros((1, 2)))
  assert names(model) == ["offset", "offset#2", "pair/weight", "pair/weight#2", "elsewhere/hidden"]


def test_a_slash_in_a_layers_name_makes_no_two_paths_equal():
  inputs = layers.Input((2,))
  inner = tf_keras.Sequential([layers.Dense(2, name="b")], name="a")
  model = tf_keras.Model(inputs, layers.Dense(2, name="a/b")(inner(inputs)))
  assert names(model) == ["a/b/kernel", "a/b/bias", "a/b#2/kernel", "a/b#2/bias"]
