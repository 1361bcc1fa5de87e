"""The platform's own notice that this machine is about to be taken away, which comes before any signal."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from absl import logging

from official_trainer.errors import ExitCode

POLL_SECS = 1.0
_TIMEOUT_SECS = 2.0
_REASON = "the platform's preemption notice"


@contextlib.contextmanager
def stop_on_notice(
  notice: Callable[[], bool] | None, request: Callable[[str, ExitCode], None], *, poll_secs: float = POLL_SECS
) -> Iterator[None]:
  """Asks for the notice again and again while the body runs, and turns it into one request to stop.

  Args:
    notice: returns whether the machine will be taken away; None asks nobody. May raise OSError, which is told once.
    request: told the reason and the exit code, from a thread.
    poll_secs: time between two questions.
  """
  if notice is None:
    yield
    return
  finished = threading.Event()

  def ask() -> None:
    has_failed = False
    while not finished.wait(poll_secs):
      try:
        if notice():
          request(_REASON, ExitCode.RESTART)
          return
      except OSError as error:
        if not has_failed:
          logging.warning("%s could not be asked for (%s); asking on.", _REASON, error)
        has_failed = True

  thread = threading.Thread(target=ask, daemon=True, name="preemption-notice")
  thread.start()
  try:
    yield
  finally:
    finished.set()
    thread.join()


def google_compute_engine() -> bool:
  """Returns whether a Compute Engine machine is being preempted, or stopped for the maintenance of its host.

  The metadata server says so (Compute Engine documentation, "Preemptible VM instances"): `preempted` is TRUE from 30
  seconds before the end, `maintenance-event` is TERMINATE_ON_HOST_MAINTENANCE from an hour before.
  """
  return (
    _metadata("instance/preempted") == "TRUE"
    or _metadata("instance/maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
  )


NOTICES: dict[str | None, Callable[[], bool] | None] = {None: None, "gce": google_compute_engine}
"""What `runtime.preemption_notice` chooses from."""


def _metadata(path: str) -> str:
  host = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
  headers = {"Metadata-Flavor": "Google"}
  request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{path}", headers=headers)
  with urllib.request.urlopen(request, timeout=_TIMEOUT_SECS) as answer:
    return str(answer.read().decode("utf-8")).strip()
