"""How the replicas' steps are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.distribute.config import RuntimeConfig


def run_options(config: RuntimeConfig) -> tf.distribute.RunOptions:
  """Returns the options of `strategy.run` that the config asks for."""
  padder = config.tpu_enable_xla_dynamic_padder
  options = {} if padder is None else {"enable_xla_dynamic_padder": padder}
  return tf.distribute.RunOptions(experimental_xla_options=tf.tpu.XLAOptions(**options))


def compiled_step(
  step: Callable[..., Any], config: RuntimeConfig, strategy: tf.distribute.Strategy
) -> Callable[..., Any]:
  """Returns a replica's step, compiled by XLA if `runtime.enable_xla` says so and the strategy allows it.

  Call once: every call makes a new function, which compiles anew. Mirrored CPU devices sum gradients by a
  synchronisation that cannot be inside a nested function; their steps stay as they are, with a warning.
  """
  if not config.enable_xla:
    return step
  if strategy.num_replicas_in_sync > 1 and strategy.extended._use_merge_call():  # noqa: SLF001  # No public way to ask.
    logging.warning("runtime.enable_xla has no effect: steps of several replicas on CPU devices cannot be compiled.")
    return step
  return tf.function(step, jit_compile=True)
