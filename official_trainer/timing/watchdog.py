"""Ends a run that hangs, instead of letting a cluster pay for it until somebody looks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator

from official_trainer.timing.phases import Phase

# Compiling, evaluating, saving and restoring take far longer than steps, and nobody has seen how long before.
_WIDE = 6
# How many times as long as the longest so far something may take.
_SLACK = 20
_LOOKS = 20
# A look that comes so many intervals late was not late for nothing.
_SUSPENDED_LOOKS = 5


class Watchdog:
  """Notices when nothing has moved for too long.

  A run moves when its step does, or the number of batches it has evaluated, and when a phase begins or ends. What is
  too long comes from what was seen: `_SLACK` times the longest wait between two steps, or the longest phase of that
  kind, and at least the time that the config gives (outside training `_WIDE` times that).
  """

  def __init__(
    self,
    hang_secs: float,
    *,
    progress: Callable[[], tuple[int, int]],
    on_hang: Callable[[Phase, float, int], None],
    unwatched: Collection[Phase] = (),
    clock: Callable[[], float] = time.monotonic,
  ):
    """Stores its arguments; `watching` starts the threads.

    Args:
      hang_secs: `runtime.hang_secs`.
      progress: reads the number of completed updates, and that of batches in this evaluation. Called from a thread of
        its own, which may wait for the devices.
      on_hang: told, from a thread and once, the phase, for how many seconds nothing has moved, and the last step seen.
      unwatched: phases that may take as long as they like.
      clock: returns seconds.
    """
    self._hang_secs = hang_secs
    self._progress = progress
    self._on_hang = on_hang
    self._unwatched = frozenset(unwatched)
    self._clock = clock
    self._lock = threading.Lock()
    self._open: list[Phase] = []
    self._moved_at = self._looked_at = clock()
    self._last: tuple[int, int] | None = None
    self._longest: dict[Phase, float] = {}
    self._finished = threading.Event()

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Watches the body."""
    threads = [
      threading.Thread(target=self._repeat, args=(work,), daemon=True, name=name)
      for name, work in (("watchdog", self._look_and_tell), ("watchdog-progress", self.look_at_progress))
    ]
    for thread in threads:
      thread.start()
    try:
      yield
    finally:
      self._finished.set()
      threads[0].join()  # The other one may wait for a device that hangs.

  @contextlib.contextmanager
  def phase(self, phase: Phase) -> Iterator[None]:
    """Watches the body as this phase."""
    with self._lock:
      self._open.append(phase)
      began = self._moved_at = self._clock()
    try:
      yield
    finally:
      with self._lock:
        self._open.pop()
        self._moved_at = self._clock()
        if phase is not Phase.TRAIN:
          self._note(phase, self._moved_at - began)

  def look_at_progress(self) -> None:
    """Notes whether the run has moved."""
    found = self._progress()
    with self._lock:
      if found == self._last:
        return
      now = self._clock()
      if self._last is not None and self._open[-1:] == [Phase.TRAIN]:
        self._note(Phase.TRAIN, now - self._moved_at)
      self._last, self._moved_at = found, now

  def stuck_for(self) -> tuple[Phase, float] | None:
    """Returns the phase and the seconds since anything moved, if those are too many."""
    with self._lock:
      now = self._clock()
      looked_at, self._looked_at = self._looked_at, now
      if now - looked_at > _SUSPENDED_LOOKS * self._interval:
        self._moved_at = now  # This thread did not run either: the process was stopped, not stuck.
      if not self._open or self._open[-1] in self._unwatched:
        return None
      phase, still = self._open[-1], now - self._moved_at
      return (phase, still) if still > self._allowed(phase) else None

  @property
  def _interval(self) -> float:
    return self._hang_secs / _LOOKS

  def _allowed(self, phase: Phase) -> float:
    least = self._hang_secs if phase is Phase.TRAIN else self._hang_secs * _WIDE
    return max(least, self._longest.get(phase, 0.0) * _SLACK)

  def _note(self, phase: Phase, secs: float) -> None:
    self._longest[phase] = max(secs, self._longest.get(phase, 0.0))

  def _look_and_tell(self) -> None:
    stuck = self.stuck_for()
    if stuck is not None:
      self._finished.set()
      self._on_hang(*stuck, self._last[0] if self._last else 0)

  def _repeat(self, work: Callable[[], None]) -> None:
    while not self._finished.wait(self._interval):
      work()
