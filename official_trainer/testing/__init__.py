"""What users test their own tasks with: faults on purpose, and the proof that a run survives them.

The names below are loaded when first used: importing the package imports no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from official_trainer.testing.compare import differences
  from official_trainer.testing.fault import FaultDidNotHappen, SimulatedCrash
  from official_trainer.testing.resume import ResumeNotExact, assert_resumes_exactly

_HOMES = {
  "FaultDidNotHappen": "official_trainer.testing.fault",
  "ResumeNotExact": "official_trainer.testing.resume",
  "SimulatedCrash": "official_trainer.testing.fault",
  "assert_resumes_exactly": "official_trainer.testing.resume",
  "differences": "official_trainer.testing.compare",
}

__all__ = [
  "FaultDidNotHappen",
  "ResumeNotExact",
  "SimulatedCrash",
  "assert_resumes_exactly",
  "differences",
]


def __getattr__(name: str) -> Any:
  """Imports the home of a public name when it is first asked for."""
  if name not in _HOMES:
    raise AttributeError(f"module 'official_trainer.testing' has no attribute '{name}'")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted(__all__)
