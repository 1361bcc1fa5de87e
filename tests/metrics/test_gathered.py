"""What replicas computed, joined without the padding."""

import collections

import numpy as np
import tensorflow as tf

from official_trainer.metrics.gathered import real_rows

Pair = collections.namedtuple("Pair", "a b")
PARTS = (np.array([[1], [2]]), np.array([[3], [4]]))


def test_the_parts_of_all_replicas_are_joined_in_order():
  assert real_rows(PARTS).tolist() == [[1], [2], [3], [4]]


def test_padding_of_any_replica_is_left_out():
  masks = (tf.constant([1.0, 0.0]), tf.constant([0.0, 1.0]))
  assert real_rows(PARTS, masks).tolist() == [[1], [4]]


def test_structures_keep_their_shape():
  found = real_rows({"x": PARTS, "y": (PARTS, [PARTS]), "z": Pair(PARTS, PARTS)}, (tf.ones([2]), tf.zeros([2])))
  np.testing.assert_equal(found, {"x": [[1], [2]], "y": ([[1], [2]], [[[1], [2]]]), "z": Pair([[1], [2]], [[1], [2]])})
  assert isinstance(found["z"], Pair)


def test_one_replica_is_joined_as_well():
  assert real_rows((tf.constant([5, 6]),), (tf.constant([0.0, 1.0]),)).tolist() == [6]
