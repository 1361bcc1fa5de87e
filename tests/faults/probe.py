"""The list of probes: one function for each fault, found by its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.faults.stack import Stack

ProbeFn = Callable[[Stack, Path], None]


class Probe(NamedTuple):
  """A function that plays a fault's symptom on a stack and raises AssertionError when the fault shows.

  It may raise NotOffered where the stack lacks what the fault is about. Any other error is a fault too: the stack could
  not do what was asked.
  """

  number: int
  run: ProbeFn


PROBES: dict[int, Probe] = {}


def probe(number: int) -> Callable[[ProbeFn], ProbeFn]:
  """Enters a function as the probe of the fault of this number."""

  def enter(function: ProbeFn) -> ProbeFn:
    if number in PROBES:
      raise ValueError(f"fault {number} has two probes")
    PROBES[number] = Probe(number, function)
    return function

  return enter
