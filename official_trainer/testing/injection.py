"""How a fault gets into a compiled loop of training or evaluation, and out of it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official_trainer.inner_loop.feed import Feed
from official_trainer.testing.fault import Fault, patched
from official_trainer.trainer import Trainer

TRAINING, EVALUATION = "training", "evaluation"

_LIKELY = {
  TRAINING: "Training began after that step or ended before it (the step counts completed updates; at the last one no"
  " further batch is fetched)",
  EVALUATION: "Nothing was evaluated at that step",
}

Change = Callable[[Trainer, Any, tf.Tensor], Any]


@contextlib.contextmanager
def injected(
  fault: Fault,
  is_at: Callable[[int], bool],
  *,
  act: Callable[[int], Any] = lambda step: None,
  change: Change = lambda trainer, inputs, is_due: inputs,
  during: str = TRAINING,
) -> Iterator[Fault]:
  """Makes the trainers whose loops are made in the body ask before each batch whether the fault is due.

  Args:
    fault: counts how often it came.
    is_at: says of a number of completed updates whether the fault belongs there.
    act: what happens then, in Python, before the update begins.
    change: returns what the update gets in place of its inputs; traced, on the host. Its last argument, bool scalar,
      says whether the fault is due.
    during: "training" or "evaluation": whose batches count.

  Raises:
    ValueError: if `during` is neither.
    FaultDidNotHappen: at the end of a body that raised nothing, if the fault did not come.
  """

  if during not in _LIKELY:
    raise ValueError(f"`during` must be {TRAINING!r} or {EVALUATION!r}, got {during!r}.")

  def ask(step: np.ndarray) -> np.bool_:
    is_due = fault.is_due and is_at(int(step))
    if is_due:
      fault.note()
      act(int(step))
    return np.bool_(is_due)

  @tf.autograph.experimental.do_not_convert
  def faulty(trainer: Trainer, inputs: Any) -> Any:
    # After the inputs are there: at the end of the data there is no further update for a fault to hit.
    with tf.device("CPU:0"), tf.control_dependencies(_leaves(inputs)):
      is_due = tf.ensure_shape(tf.numpy_function(ask, [trainer.global_step.read_value()], tf.bool), [])
    with tf.control_dependencies([is_due]):
      inputs = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.identity(leaf), inputs, expand_composites=True
      )
    return change(trainer, inputs, is_due)

  # The inputs' method is replaced on the object: a subclass may have one of its own.
  def training_hooked(create: Callable[[Trainer], Any]) -> Callable[[Trainer], Any]:
    def create_train_loop_fn(trainer: Trainer) -> Any:
      next_inputs = trainer.next_train_inputs

      def next_train_inputs(iterator: Any) -> Any:
        return faulty(trainer, next_inputs(iterator))

      trainer.next_train_inputs = next_train_inputs
      return create(trainer)

    return create_train_loop_fn

  def evaluation_hooked(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_eval_loop_fn(trainer: Trainer, has_state: bool) -> Any:
      next_inputs = trainer.next_eval_inputs

      def next_eval_inputs(iterator: Any) -> Any:
        inputs, logs = next_inputs(iterator)
        return faulty(trainer, inputs), logs

      trainer.next_eval_inputs = next_eval_inputs
      return create(trainer, has_state)

    return create_eval_loop_fn

  def waiting(_: Callable[..., Any]) -> Callable[..., Any]:
    # Endless data are not waited for by ops that need no inputs, such as the step's counter: these would run though
    # the fault has come.
    def awaited(feed: Feed, inputs: Any) -> contextlib.AbstractContextManager[Any]:
      del feed
      return tf.control_dependencies(_leaves(inputs))

    return awaited

  hook = ("create_train_loop_fn", training_hooked) if during == TRAINING else ("create_eval_loop_fn", evaluation_hooked)
  with patched(Trainer, *hook), patched(Feed, "awaited", waiting):
    try:
      yield fault
    finally:
      fault.end()
  fault.require_happened(
    f"{_LIKELY[during]}, or the loop was compiled before the context was entered: build the trainer inside."
  )


def _leaves(inputs: Any) -> list[tf.Tensor]:
  return [leaf for leaf in tf.nest.flatten(inputs, expand_composites=True) if tf.is_tensor(leaf)]
