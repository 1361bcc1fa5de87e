"""What a stack answers when it is asked about a fault. No TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

BEHAVES = "behaves"
FAULTY = "has the fault"
NOT_OFFERED = "not offered"
NOT_ASKED = "not asked"
NOT_YET = "not yet"


class Answer(NamedTuple):
  """One answer.

  Attributes:
    verdict: BEHAVES, FAULTY or NOT_OFFERED.
    why: what showed, or what is missing; "" where it behaves.
  """

  verdict: str
  why: str = ""
