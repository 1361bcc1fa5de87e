"""Builds a stack by its name, and only then imports it."""

from __future__ import annotations

from tests.faults.stack import Stack

NAMES = ("ours", "peer")


def build_stack(name: str) -> Stack:
  """Imports and returns "ours" or "peer"."""
  if name == "ours":
    from tests.faults.ours import Ours

    return Ours()
  if name == "peer":
    from tests.faults.peer import Peer

    return Peer()
  raise ValueError(f"a stack is one of {', '.join(NAMES)}, got {name!r}")
