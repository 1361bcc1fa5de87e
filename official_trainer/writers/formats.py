"""How numbers, durations and metric names are written for people, on the console and in plots."""

from __future__ import annotations

import math
from collections.abc import Iterable

VALUE_WIDTH = 8
"""No `value` is wider, so columns padded to it stay aligned for a whole run."""

MODE_WIDTH = len("validation")


def value(number: float) -> str:
  """Returns a metric with three or more significant digits, in at most VALUE_WIDTH characters."""
  size = abs(number)
  if not math.isfinite(number):
    return str(number)
  if size == 0:
    return "0"
  if size < 1e-3 or size >= 99_999.5:
    texts = (f"{number:.{digits}e}" for digits in (2, 1, 0))
    return next(text for text in texts if len(text) <= VALUE_WIDTH)
  if size < 0.01:
    return f"{number:.5f}"
  digits = 4 if size < 10 else 3 if size < 100 else 2 if size < 1_000 else 1 if size < 10_000 else 0
  return f"{number:.{digits}f}"


def speed(steps_per_second: float) -> str:
  """Returns a speed such as "812 steps/s", or "12.5 s/step" for very slow ones."""
  digits = 0 if steps_per_second >= 99.95 else 1 if steps_per_second >= 9.995 else 2
  if 0 < steps_per_second < 0.1:
    return f"{1 / steps_per_second:.1f} s/step"
  return f"{steps_per_second:.{digits}f} steps/s"


def remaining(steps: int, steps_per_second: float | None) -> str:
  """Returns the time that `steps` take at this speed: "0:00:12", or "29d  3:12:05"."""
  if not steps_per_second or not math.isfinite(steps_per_second):
    return "-:--:--"
  seconds = math.ceil(max(steps, 0) / steps_per_second)
  days, seconds = divmod(seconds, 86_400)
  clock = f"{seconds // 3_600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
  return f"{days}d {clock:>8}" if days else clock


def position(step: int, total_steps: int | None) -> str:
  """Returns "  200/1000", as wide at every step, or the step alone where no total is known."""
  if total_steps is None:
    return f"{step:>7}"
  return f"{step:>{len(str(total_steps))}}/{total_steps}"


def shared_name(name: str) -> str:
  """Returns the name under which training and validation compare: `validation_loss` is `loss`.

  Only losses carry their mode in the name; `validation_set_size` stays what it is.
  """
  return "loss" if name in ("training_loss", "validation_loss", "train_loss") else name


def in_order(names: Iterable[str]) -> list[str]:
  """Returns names once each: losses first, learning rates last, else in the given order."""
  return sorted(
    dict.fromkeys(names),
    key=lambda name: -1 if name.endswith("loss") else 1 if name.startswith("learning_rate") else 0,
  )
