"""What the replicas get of a global batch, in a line for people."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official_trainer.inner_loop.feed import Feed, IndexedFeed

_MOST_SHOWN = 6


def batch_note(feed: Feed, global_batch_size: int, num_replicas: int) -> str:
  """Returns how the examples of a step fall on the replicas, with the form of what one gets where it is known.

  Args:
    feed: the training input.
    global_batch_size: examples of a step.
    num_replicas: replicas that share them.
  """
  each = -(-global_batch_size // num_replicas)
  shares = "all on one replica" if num_replicas == 1 else f"{each} on each of {num_replicas} replicas"
  if each * num_replicas != global_batch_size:
    shares += f", {each * num_replicas - global_batch_size} of them padding"
  # That of a pipeline is not known before it is built, which may take long.
  spec = feed.inputs_spec() if isinstance(feed, IndexedFeed) else None
  return f"batches of {global_batch_size} examples: {shares}{_forms(spec, each)}"


def _forms(spec: Any, size: int) -> str:
  leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
  forms = [f"{leaf.dtype.name} {[size, *leaf.shape.as_list()[1:]]}" for leaf in leaves if leaf.shape.rank]
  more = f" and {len(forms) - _MOST_SHOWN} more" if len(forms) > _MOST_SHOWN else ""
  return f": {', '.join(forms[:_MOST_SHOWN])}{more}" if forms else ""
