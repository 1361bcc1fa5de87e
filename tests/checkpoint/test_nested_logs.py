import numpy as np
import tensorflow as tf

from official_trainer.checkpoint.nested_logs import lookup, names_of, scalars_in


def test_names_are_found_at_any_depth():
  logs = {"a": 1, "b": {"c": tf.constant(2.0), "d": {"e": np.float32(3)}}, "x|y": 4.0, "s": "text"}
  assert [lookup(logs, name) for name in ("a", "b|c", "b|d|e", "x|y")] == [1.0, 2.0, 3.0, 4.0]
  assert [lookup(logs, name) for name in ("c", "b", "b|d", "a|b", "s", "")] == [None] * 6
  assert names_of(logs) == ["a", "b|c", "b|d|e", "x|y", "s"]


def test_scalars_keep_their_nesting_and_the_rest_is_left_out():
  logs = {"a": tf.constant(2.0), "b": {"c": np.float32(1), "text": "left out"}, "d": [1.0, 2.0]}
  assert scalars_in(logs) == {"a": 2.0, "b": {"c": 1.0}}
