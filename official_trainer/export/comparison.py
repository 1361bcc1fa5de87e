"""When two computations of the same thing agree."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-6
"""Share of a tensor's largest magnitude by which float32 and float64 values may differ: the same operations on the same
values, added up in another order, by another number of threads or on another device. That is 8 ulp of a float32."""

BIT_EQUAL = "bit-equal"
WITHIN_TOLERANCE = "within tolerance"

Tensors = Mapping[str, np.ndarray]


def compare(expected: Tensors, found: Tensors) -> tuple[str, list[str]]:
  """Compares named tensors.

  Args:
    expected: name -> array.
    found: likewise.

  Returns:
    (BIT_EQUAL or WITHIN_TOLERANCE, what differs by more). Types of less than 32 bits may differ by 4 ulp of the largest
    magnitude; whole numbers, truth values and strings not at all. NaN and infinities must be at the same places.
  """
  problems = []
  equal = expected.keys() == found.keys()
  if not equal:
    problems.append(f"the outputs are {', '.join(sorted(found))}, expected {', '.join(sorted(expected))}")
  for name in sorted(expected.keys() & found.keys()):
    if _same_bits(expected[name], found[name]):
      continue
    equal = False
    if problem := _difference(expected[name], found[name]):
      problems.append(f"{name} {problem}")
  return (BIT_EQUAL if equal else WITHIN_TOLERANCE), problems


def tolerance_of(dtype: np.dtype) -> float:
  """Returns by which share of the largest magnitude values of a floating-point type may differ."""
  narrow = tf.as_dtype(dtype).size < 4
  return 4 * float(ml_dtypes.finfo(dtype).eps) if narrow else TOLERANCE


def _same_bits(expected: np.ndarray, found: np.ndarray) -> bool:
  if expected.dtype != found.dtype or expected.shape != found.shape:
    return False
  if expected.dtype == object:
    return bool(np.array_equal(expected, found))
  return expected.tobytes() == found.tobytes()


def _difference(expected: np.ndarray, found: np.ndarray) -> str | None:
  """Says by how much two arrays differ that do not have the same bits; None where that is tolerated."""
  if expected.dtype != found.dtype or expected.shape != found.shape:
    return f"is {found.dtype} {list(found.shape)}, expected {expected.dtype} {list(expected.shape)}"
  if expected.dtype == object or not tf.as_dtype(expected.dtype).is_floating:
    return f"differs in {np.count_nonzero(expected != found)} of {expected.size} values"
  one, two = expected.astype(np.float64), found.astype(np.float64)
  finite = np.isfinite(one)
  if not np.array_equal(one[~finite], two[~finite], equal_nan=True) or not np.all(np.isfinite(two[finite])):
    return "differs in which values are finite"
  allowed = tolerance_of(expected.dtype) * np.max(np.abs(one[finite]), initial=0.0)
  largest = np.max(np.abs(one[finite] - two[finite]), initial=0.0)
  if largest <= allowed:
    return None
  return f"differs by {largest:.3g}, which is more than {allowed:.3g}"
