"""SIGTERM and Ctrl-C as requests to stop, noticed also while the main thread is inside TensorFlow."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from official_trainer.errors import ExitCode

CODES = {signal.SIGTERM: ExitCode.RESTART, signal.SIGINT: ExitCode.INTERRUPTED}
_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
# Left between the deadline and the end of the grace time, in which whoever sent the signal kills.
_MARGIN = 0.1


@contextlib.contextmanager
def stop_on_signals(
  request: Callable[[str, ExitCode], None],
  *,
  grace_secs: float,
  last_words: Callable[[], str],
  leave: Callable[[int], None] = os._exit,
) -> Iterator[None]:
  """Turns the first signal into a request, a second one into an end at once, for the body.

  Python runs signal handlers between two instructions of the main thread, which may be inside one call of TensorFlow
  for minutes. The number of the signal also arrives in a pipe at once, and a thread waits there. When the grace time is
  nearly over and the process still lives, that thread ends it: with what was committed last, and saying so.

  Args:
    request: told the signal's name and the exit code, once, from the thread.
    grace_secs: how long the process may live after the first signal.
    last_words: returns what to say where the deadline ends the process.
    leave: ends the process with a code.
  """
  if threading.current_thread() is not threading.main_thread():
    yield  # Only the main thread may set handlers; who runs us in another one has handlers of its own.
    return
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  finished = threading.Event()
  watch = threading.Thread(
    target=_watch, args=(reader, finished, request, grace_secs, last_words, leave), daemon=True, name="signals"
  )
  before = {number: signal.signal(number, _ignore) for number in CODES}
  pipe_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  watch.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(pipe_before)
    for number, handler in before.items():
      signal.signal(number, handler)
    finished.set()
    os.close(writer)
    watch.join()
    os.close(reader)


def _ignore(number: int, frame: FrameType | None) -> None:
  """Does nothing: the thread has the signal already. Its being there keeps Python from raising KeyboardInterrupt."""


def _watch(
  reader: int,
  finished: threading.Event,
  request: Callable[[str, ExitCode], None],
  grace_secs: float,
  last_words: Callable[[], str],
  leave: Callable[[int], None],
) -> None:
  first: int | None = None
  while received := os.read(reader, 1):
    number = received[0]
    if number not in CODES:
      continue
    if first is not None:
      _say(f"{_NAMES[number]} again: ending at once. {last_words()}")
      leave(int(CODES[first]))
      return
    first = number
    request(_NAMES[number], CODES[number])
    deadline = threading.Timer(grace_secs * (1 - _MARGIN), _end, args=(number, finished, grace_secs, last_words, leave))
    deadline.daemon = True
    deadline.start()


def _end(
  number: int,
  finished: threading.Event,
  grace_secs: float,
  last_words: Callable[[], str],
  leave: Callable[[int], None],
) -> None:
  if not finished.is_set():
    _say(f"{_NAMES[number]}: the {grace_secs:g} s of runtime.grace_secs are over. {last_words()}")
    leave(int(CODES[number]))


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
