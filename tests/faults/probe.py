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
  slow: bool


PROBES: dict[int, Probe] = {}


def probe(number: int, *, slow: bool = False) -> Callable[[ProbeFn], ProbeFn]:
  """Enters a function as the probe of a fault.

  Args:
    number: the fault's.
    slow: whether it takes longer than a suite that runs all the time has, or starts processes.
  """

  def enter(function: ProbeFn) -> ProbeFn:
    if number in PROBES:
      raise ValueError(f"fault {number} has two probes")
    PROBES[number] = Probe(number, function, slow)
    return function

  return enter
