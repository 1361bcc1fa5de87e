import math

import numpy as np
import tensorflow as tf

from official_trainer.actions.event import Event, scalars_of


def test_scalars_of_any_kind_become_python_floats():
  found = scalars_of({"a": 1, "b": np.float32(0.5), "c": tf.constant(2)})
  assert found == {"a": 1.0, "b": 0.5, "c": 2.0}
  assert all(type(value) is float for value in found.values())


def test_nested_names_are_joined():
  assert scalars_of({"a": {"b": {"c": 1.0}}, "d": 2.0}) == {"a/b/c": 1.0, "d": 2.0}


def test_what_is_no_scalar_is_left_out():
  assert scalars_of({"text": "x", "none": None, "many": np.zeros(2), "matrix": tf.eye(2)}) == {}


def test_values_that_are_not_finite_are_kept():
  assert math.isnan(scalars_of({"a": tf.constant(math.nan)})["a"])


def test_an_event_reports_and_saves_nothing_unless_told():
  event = Event(step=1, mode="train", output={}, metrics={})
  assert event.reports and not event.saves
