import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoint.finite import FiniteCheck


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_variables_that_hold_a_value_that_is_not_finite_are_named_in_order(bad):
  variables = [tf.Variable(tf.zeros([2, 3]), name=f"layer{i}/kernel") for i in range(4)]
  check = FiniteCheck(variables)
  assert check.non_finite_names() == []
  for index in (3, 1):
    variables[index].assign(tf.fill([2, 3], 1.0))
    variables[index][1, 2].assign(bad)
  assert check.non_finite_names() == ["layer1/kernel", "layer3/kernel"]


def test_the_largest_finite_values_are_finite():
  largest = tf.Variable([np.finfo(np.float32).max, np.finfo(np.float32).tiny])
  half = tf.Variable(np.float16(65504.0))
  assert FiniteCheck([largest, half]).non_finite_names() == []


def test_no_variables_are_finite():
  assert FiniteCheck([]).non_finite_names() == []


def test_every_replica_is_looked_at_and_it_is_traced_once(logical_cpus):
  with tf.distribute.MirroredStrategy(logical_cpus[:2]).scope():
    variable = tf.Variable(1.0, name="w")
    check = FiniteCheck([variable])
    assert check.non_finite_names() == []
    variable.assign(np.nan)
    assert check.non_finite_names() == ["w"]
  assert check._flags.experimental_get_tracing_count() == 1
