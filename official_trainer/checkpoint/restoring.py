"""Restoring a checkpoint so that nothing is half matched."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tensorflow as tf

from official_trainer.checkpoint.stored import VALUE, reader_of, stored_shapes
from official_trainer.config.nearest import meant
from official_trainer.errors import CheckpointMismatch, ConfigError

# Where legacy optimizers keep what belongs to a variable: not among the children of any object.
_SLOT = ".OPTIMIZER_SLOT"
# TensorFlow's own count of saves, which only asynchronous ones write.
_COUNTER = "save_counter"
_FLAG = "--allow_checkpoint_mismatch"


def restore_exactly(
  checkpoint: tf.train.Checkpoint,
  prefix: str,
  *,
  unused_roots: Collection[str] | None = (),
  may_differ: Collection[str] = (),
) -> list[str]:
  """Restores every object of `checkpoint` from `prefix`, and every value of `prefix`. Call under the strategy's scope.

  Args:
    checkpoint: the objects, with all their variables already made.
    prefix: path of the checkpoint without suffix.
    unused_roots: roots of the file that nobody needs to take, such as the optimizer for an evaluation; None for all
      that `checkpoint` does not have.
    may_differ: names, as CheckpointMismatch lists them, or what such names begin with up to a "/": variables that may
      be missing on either side, or have another shape. They keep their initial values; where they match they are
      restored.

  Returns:
    The names that differ.

  Raises:
    CheckpointMismatch: if an object has no counterpart in the file, or another shape, or a value of the file has no
      counterpart among the objects: a smaller model is another model.
  """
  if may_differ:
    return _restore_what_matches(checkpoint, prefix, unused_roots, may_differ)
  # Before TensorFlow reads: whatever it does not find, it complains of in warnings when it frees its memory.
  if _differing(_variables_by_path(checkpoint), _shapes_by_path(prefix), unused_roots):
    raise CheckpointMismatch(_explain(checkpoint, prefix, None))
  try:
    checkpoint.read(prefix).expect_partial().assert_existing_objects_matched()
  except (AssertionError, ValueError) as error:
    raise CheckpointMismatch(_explain(checkpoint, prefix, error)) from error
  return []


def _differing(
  wanted: Mapping[str, tf.Variable], stored: Mapping[str, list[int]], unused_roots: Collection[str] | None
) -> list[str]:
  """Lists the paths that are missing on either side, or have another shape."""
  unmatched = [path for path, variable in wanted.items() if list(variable.shape) != stored.get(path)]
  return unmatched + _unused(wanted, stored, unused_roots)


def _unused(wanted: Collection[str], stored: Collection[str], unused_roots: Collection[str] | None) -> list[str]:
  """Lists the paths in the file that nobody takes, though somebody should."""
  own_roots = {_root(path) for path in wanted}

  def may_stay(path: str) -> bool:
    return _root(path) not in own_roots if unused_roots is None else _root(path) in unused_roots

  return [path for path in stored if path not in wanted and not may_stay(path)]


def _restore_what_matches(
  checkpoint: tf.train.Checkpoint, prefix: str, unused_roots: Collection[str] | None, may_differ: Collection[str]
) -> list[str]:
  """Restores by name, so that single variables can be left out; TensorFlow restores an object whole or not at all."""
  stored, wanted = _shapes_by_path(prefix), _variables_by_path(checkpoint)
  if any(_SLOT in key for key in stored_shapes(prefix)):
    raise CheckpointMismatch(
      f"cannot restore {prefix} in part: it holds slots of a legacy optimizer, which have no names of their own."
    )
  differing = _differing(wanted, stored, unused_roots)
  known = {*wanted, *stored}
  # Where all match, a name that is nowhere is that of a variable which was removed before the checkpoint was written.
  for name in may_differ if differing else ():
    if not any(_is_named(path, name) for path in known):
      raise ConfigError.of(_FLAG, f"names '{name}', which is in neither the model nor {prefix}.{meant(name, known)}")
  if not all(any(_is_named(path, name) for name in may_differ) for path in differing):
    raise CheckpointMismatch(_explain(checkpoint, prefix, None))
  reader = reader_of(prefix)
  for path, variable in wanted.items():
    if path not in differing:
      variable.assign(reader.get_tensor(path + VALUE))
  return differing


def _is_named(path: str, name: str) -> bool:
  return path == name or path.startswith(f"{name}/")


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
  if names := [*missing, *unused, *other]:
    lines.append(f"To go on all the same, with initial values for these: {_FLAG}={','.join(names)}")
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
    queue += [(f"{path}/{_escaped(name)}" if path else _escaped(name), child) for name, child in children.items()]
  return paths


def _escaped(name: str) -> str:
  """Returns a child's name as keys of checkpoints have it: a key of a dictionary may hold a "/"."""
  return name.replace(".", "..").replace("/", ".S")
