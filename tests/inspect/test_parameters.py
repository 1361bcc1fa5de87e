import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.inspect.parameters import parameter_table
from official_trainer.optim.group_columns import GroupColumns

layers = tf_keras.layers


def small():
  inputs = layers.Input((3,))
  outputs = layers.Dense(2, name="head")(layers.BatchNormalization(name="norm")(layers.Dense(4, name="body")(inputs)))
  return tf_keras.Model(inputs, outputs)


@pytest.fixture(scope="module")
def model():
  return small()


def test_the_text_lists_every_variable_and_the_totals(model):
  assert parameter_table(model).to_text().splitlines() == [
    "path                  shape  dtype    parameters  state",
    "body/kernel           3x4    float32          12  trained",
    "body/bias             4      float32           4  trained",
    "norm/gamma            4      float32           4  trained",
    "norm/beta             4      float32           4  trained",
    "norm/moving_mean      4      float32           4  not trainable",
    "norm/moving_variance  4      float32           4  not trainable",
    "head/kernel           4x2    float32           8  trained",
    "head/bias             2      float32           2  trained",
    "",
    "42 parameters in 8 variables: 34 trainable, 8 not; 168 B",
  ]


def test_totals_equal_what_numpy_counts(model):
  table = parameter_table(model)
  count = [np.prod(v.shape, dtype=int) for v in model.trainable_variables]
  assert table.num_trainable == sum(count)
  assert table.num_parameters == sum(v.numpy().size for v in model.variables)
  assert table.num_bytes == sum(v.numpy().nbytes for v in model.variables)


def test_what_groups_say_is_shown_beside_the_variables_they_hold(model):
  columns = {
    "body/kernel": GroupColumns(group="body", lr_multiplier=0.1, weight_decay=0.01),
    "body/bias": GroupColumns(group="bias", frozen=True),
  }
  table = parameter_table(model, columns)
  lines = table.to_text().splitlines()
  assert lines[0].split() == ["path", "shape", "dtype", "parameters", "state", "group", "learning", "rate", "decay"]
  assert lines[1].split() == ["body/kernel", "3x4", "float32", "12", "trained", "body", "x0.1", "0.01"]
  assert lines[2].split() == ["body/bias", "4", "float32", "4", "frozen", "bias", "x1", "-"]
  assert lines[3].split() == ["norm/gamma", "4", "float32", "4", "trained", "-", "-", "-"]
  assert table.num_trainable == 30


def test_variables_of_a_frozen_layer_are_frozen_and_statistics_are_not_trainable():
  model = small()
  model.get_layer("norm").trainable = False
  states = {row.path: row.cells[4] for row in parameter_table(model).rows}
  assert states["norm/gamma"] == "frozen" and states["norm/moving_mean"] == "not trainable"
  assert states["head/kernel"] == "trained"
  assert parameter_table(model).num_trainable == 26


def test_markdown_is_a_table_below_the_totals(model):
  lines = parameter_table(model).to_markdown().splitlines()
  assert lines[:5] == [
    "42 parameters in 8 variables: 34 trainable, 8 not; 168 B",
    "",
    "| path | shape | dtype | parameters | state |",
    "| --- | --- | --- | ---: | --- |",
    "| body/kernel | 3x4 | float32 | 12 | trained |",
  ]
  assert len(lines) == 4 + 8


def test_only_so_many_lines_of_markdown_are_shown(model, monkeypatch):
  from official_trainer.inspect import parameters

  monkeypatch.setattr(parameters, "_MOST_SHOWN", 3)
  lines = parameter_table(model).to_markdown().splitlines()
  assert lines[6].startswith("| norm/gamma") and lines[-1] == "5 more variables are in `parameters.txt`."


def test_a_variable_is_listed_in_the_type_it_is_stored_in():
  tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
  try:
    table = parameter_table(small())
  finally:
    tf_keras.mixed_precision.set_global_policy("float32")
  assert {row.dtype for row in table.rows} == {"float32"}
  assert table.num_bytes == 168


class Scale(tf_keras.Model):
  def __init__(self):
    super().__init__()
    self.factor = tf.Variable(1.0, name="factor")

  def call(self, inputs):
    return inputs * self.factor


def test_a_scalar_is_one_parameter():
  model = Scale()
  model(tf.zeros((1, 2)))
  assert parameter_table(model).rows[0].cells[:4] == ("factor", "scalar", "float32", "1")
