"""Restoring a checkpoint so that nothing is half matched."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from official_trainer.checkpoint.stored import VALUE, stored_shapes
from official_trainer.errors import CheckpointMismatch

# Where legacy optimizers keep what belongs to a variable: not among the children of any object.
_SLOT = ".OPTIMIZER_SLOT"
# TensorFlow's own count of saves, which only asynchronous ones write.
_COUNTER = "save_counter"


def restore_exactly(checkpoint: tf.train.Checkpoint, prefix: str, *, unused_roots: Collection[str] | None = ()) -> None:
  """Restores every object of `checkpoint` from `prefix`, and every value of `prefix`. Call under the strategy's scope.

  Args:
    checkpoint: the objects, with all their variables already made.
    prefix: path of the checkpoint without suffix.
    unused_roots: roots of the file that nobody needs to take, such as the optimizer for an evaluation; None for all
    that
      `checkpoint` does not have.

  Raises:
    CheckpointMismatch: if an object has no counterpart in the file, or another shape, or a value of the file has no
      counterpart among the objects: a smaller model is another model.
  """
  try:
    status = checkpoint.read(prefix)
    status.assert_existing_objects_matched()
    status.expect_partial()
  except (AssertionError, ValueError) as error:
    raise CheckpointMismatch(_explain(checkpoint, prefix, error)) from error
  wanted = _variables_by_path(checkpoint)
  own_roots = {_root(path) for path in wanted}
  for path in _shapes_by_path(prefix):
    may_stay = _root(path) not in own_roots if unused_roots is None else _root(path) in unused_roots
    if path not in wanted and not may_stay:
      raise CheckpointMismatch(_explain(checkpoint, prefix, None))


def restore_matching(checkpoint: tf.train.Checkpoint, prefix: str) -> None:
  """Restores what `prefix` holds and leaves the rest as it is: for checkpoints that another program wrote.

  Raises:
    CheckpointMismatch: if a counterpart has another shape.
  """
  try:
    checkpoint.read(prefix).expect_partial()
  except ValueError as error:
    raise CheckpointMismatch(_explain(checkpoint, prefix, error)) from error


def _root(path: str) -> str:
  return path.partition("/")[0]


def _shapes_by_path(prefix: str) -> dict[str, list[int]]:
  """Maps the path of each variable in the file to its shape; leaves out slots of legacy optimizers."""
  return {
    key.removesuffix(VALUE): shape
    for key, shape in sorted(stored_shapes(prefix).items())
    if key.endswith(VALUE) and _SLOT not in key and _root(key) != _COUNTER
  }


def _explain(checkpoint: tf.train.Checkpoint, prefix: str, error: Exception | None) -> str:
  stored = _shapes_by_path(prefix)
  wanted = _variables_by_path(checkpoint)
  lines = [f"cannot restore {prefix}:"]
  missing = [path for path in wanted if path not in stored]
  unused = [path for path in stored if path not in wanted]
  other = [path for path in wanted if path in stored and list(wanted[path].shape) != list(stored[path])]
  if missing:
    lines.append(f"  in the model, not in the checkpoint ({len(missing)}):")
    lines += [f"    - {path} {list(wanted[path].shape)}" for path in missing]
  if unused:
    lines.append(f"  in the checkpoint, not in the model ({len(unused)}):")
    lines += [f"    + {path} {list(stored[path])}" for path in unused]
  if other:
    lines.append(f"  shapes differ ({len(other)}):")
    lines += [f"    ! {path} {list(wanted[path].shape)} vs {list(stored[path])}" for path in other]
  if not (missing or unused or other):
    lines.append(f"  {error}")
  lines.append("It belongs to another model or another configuration; use the matching one, or another model_dir.")
  return "\n".join(lines)


def _variables_by_path(checkpoint: tf.train.Checkpoint) -> dict[str, tf.Variable]:
  """Maps the path that a variable has in a checkpoint to the variable, by walking the object graph."""
  paths: dict[str, tf.Variable] = {}
  seen: set[int] = set()
  queue: list[tuple[str, object]] = [("", checkpoint)]
  while queue:
    path, node = queue.pop(0)
    if id(node) in seen:
      continue
    seen.add(id(node))
    if isinstance(node, tf.Variable):
      paths[path] = node
      continue
    children = node._trackable_children()  # noqa: SLF001  # TensorFlow has no public walk over trackables.
    queue += [(f"{path}/{name}" if path else name, child) for name, child in children.items()]
  return paths
