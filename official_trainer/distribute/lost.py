"""Telling that another process of a cluster is gone, and which."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import tensorflow as tf

from official_trainer.distribute.cluster import PS, task_name
from official_trainer.errors import PeerLost

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
# What TensorFlow's collectives and its coordination service say when a task is gone, whatever the class of the error.
_SIGNS = (
  "Collective ops is aborted by",
  "heartbeat timeout",
  "Connection reset by peer",
  "failed to connect to all addresses",
  "Socket closed",
  "recvmsg:",
  "The following tasks are unhealthy",
  "has been restarted",
)


@contextlib.contextmanager
def told_apart(own: str, newest_step: Callable[[], int], reached: Callable[[], int] | None = None) -> Iterator[None]:
  """Turns TensorFlow's error of a lost process, in the body, into PeerLost.

  Args:
    own: the name of this process, which is not the one that is lost.
    newest_step: returns the step of the newest checkpoint.
    reached: returns the completed updates; None where nothing was trained since that checkpoint.
  """
  try:
    yield
  except tf.errors.OpError as error:
    if not is_loss(error):
      raise
    saved = newest_step()
    raise PeerLost(saved, _who(str(error), own), saved if reached is None else reached()) from error


def is_loss(error: tf.errors.OpError) -> bool:
  """Says whether an error of TensorFlow means that another process cannot be reached."""
  return isinstance(error, tf.errors.UnavailableError) or any(sign in str(error) for sign in _SIGNS)


def _who(text: str, own: str) -> str:
  names = [task_name(job, int(index)) for job, index in _TASK.findall(text)]
  others = sorted({name for name in names if name != own})
  # A worker that cannot reach a parameter server says so: the server is lost. A lost worker would not end a run.
  others = [name for name in others if name.startswith(f"{PS} ")] or others
  return " or ".join(others) or "another process of the run"
