"""What counts as the same computation."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official_trainer.export.comparison import BIT_EQUAL, TOLERANCE, WITHIN_TOLERANCE, compare

ONE = np.array([1.0, -2.0, np.nan, np.inf], np.float32)


def test_the_same_bits_are_bit_equal_also_with_nan():
  strings = np.array([b"a", b"b"], object)
  assert compare({"x": ONE, "s": strings}, {"x": ONE.copy(), "s": strings.copy()}) == (BIT_EQUAL, [])


def test_a_few_ulp_of_the_largest_magnitude_are_tolerated_and_more_are_not():
  near, far = ONE.copy(), ONE.copy()
  near[0] += 2.0 * TOLERANCE * 0.9
  far[0] += 2.0 * TOLERANCE * 1.1
  assert compare({"x": ONE}, {"x": near}) == (WITHIN_TOLERANCE, [])
  result, [problem] = compare({"x": ONE}, {"x": far})
  assert problem.startswith("x differs by 2.")
  assert "which is more than 2e-06" in problem


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_types_may_differ_by_four_ulp(dtype):
  one = np.array([1.0, 0.0]).astype(dtype.as_numpy_dtype)
  eps = float(ml_dtypes.finfo(dtype.as_numpy_dtype).eps)
  for factor, problems in ((4, 0), (5, 1)):
    other = (one.astype(np.float64) + [0.0, factor * eps]).astype(one.dtype)
    assert len(compare({"x": one}, {"x": other})[1]) == problems


@pytest.mark.parametrize(
  ("expected", "found", "says"),
  [
    ([1, 2], [1, 3], "x differs in 1 of 2 values"),
    ([True], [False], "x differs in 1 of 1 values"),
    (np.array([b"a"], object), np.array([b"b"], object), "x differs in 1 of 1 values"),
    ([1.0, np.nan], [1.0, 2.0], "x differs in which values are finite"),
    ([1.0, 2.0], [1.0, np.inf], "x differs in which values are finite"),
    ([np.inf], [-np.inf], "x differs in which values are finite"),
    ([1.0, 2.0], [1.0], r"x is float64 [1], expected float64 [2]"),
    ([1.0], [1], r"x is int64 [1], expected float64 [1]"),
    ([0.0], [1e-30], "x differs by 1e-30, which is more than 0"),
  ],
)
def test_everything_else_differs(expected, found, says):
  assert compare({"x": np.asarray(expected)}, {"x": np.asarray(found)})[1] == [says]


def test_other_outputs_are_named():
  assert compare({"x": ONE}, {"y": ONE})[1] == ["the outputs are y, expected x"]
