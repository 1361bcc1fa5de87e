"""A replica's batch in equal parts, one after the other, for gradient accumulation."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official_trainer.data.padding import Batch


def micro_batch(batch: Batch, index: tf.Tensor, num: int) -> Batch:
  """Returns one of `num` parts of a replica's batch. Runs in replica context, traced.

  Args:
    batch: nested structure of tensors [batch, ...]; the batch size must divide by `num`.
    index: int32 scalar, which part, from 0.
    num: number of parts.

  Raises:
    ValueError: if the batch size is known, and does not divide.
    tf.errors.InvalidArgumentError: in the step, if it does not divide.
  """

  def part(tensor: Any) -> Any:
    if tensor is None:
      return None
    known = tensor.shape[0]
    if known is not None and known % num:
      raise ValueError(
        f"trainer.gradient_accumulation_steps ({num}) must divide each replica's batch, got {known} examples. Change"
        " it, or task.train_data.global_batch_size."
      )
    whole = known if known is not None else tf.shape(tensor)[0]
    checks = [] if known is not None else [_divides(whole, num)]
    with tf.control_dependencies(checks):
      size = whole // num
      if not isinstance(tensor, tf.Tensor):
        return tensor[index * size : (index + 1) * size]
      # With a size of its own: to XLA, rows between two numbers that are computed are as many as the whole has.
      rest = [tf.shape(tensor)[axis] if dim is None else dim for axis, dim in enumerate(tensor.shape) if axis]
      return tf.slice(tensor, [index * size, *(0 for _ in rest)], [size, *rest])

  return Batch(tf.nest.map_structure(part, batch.inputs), part(batch.mask))


def _divides(size: tf.Tensor, num: int) -> tf.Operation:
  message = f"trainer.gradient_accumulation_steps ({num}) must divide each replica's batch."
  return tf.debugging.assert_equal(size % num, 0, message=message)
