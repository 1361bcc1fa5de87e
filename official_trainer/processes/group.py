"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from official_trainer.processes import reaper

POLL_SECS = 0.02

# The new process reports itself before it becomes the program: there is no moment in which it runs unknown.
_REPORT_AND_BECOME = (
  "import os, sys; fd = int(sys.argv[1]); os.write(fd, b'+%d\\n' % os.getpid());"
  " os.set_inheritable(fd, False); os.execvpe(sys.argv[2], sys.argv[2:], os.environ)"
)


class Reaper:
  """Kills what is left of the groups started with it when this process ends, also when it is killed."""

  def __init__(self) -> None:
    read, self._write = os.pipe()
    # Its standard output may be a pipe whose reader waits for the end: it keeps none of them open.
    self._process = subprocess.Popen(
      [sys.executable, "-I", "-S", reaper.__file__],
      stdin=read,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    os.close(read)

  def start(self, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> GroupProcess:
    """Starts a command as the leader of a group of its own, and appends its output to `log`."""
    with log.open("ab") as output:
      process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REPORT_AND_BECOME, str(self._write), *command],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=(self._write,),
        start_new_session=True,
      )
    return GroupProcess(process, log, self)

  def forget(self, group: int) -> None:
    """Says that a group has ended, so that its number may be another's."""
    os.write(self._write, b"-%d\n" % group)

  def close(self) -> None:
    """Kills what is left, and returns when that is done. May be called twice."""
    if self._write >= 0:
      os.close(self._write)
      self._write = -1
      self._process.wait()


class GroupProcess:
  """A running command, with all that it starts in turn.

  Attributes:
    pid: of the command, and the number of its group.
    log_path: the file of its output.
    returncode: None while it runs; as in `subprocess`, -N after signal N.
    secs: how long it has run, once it has ended.
  """

  def __init__(self, process: subprocess.Popen[bytes], log_path: Path, owner: Reaper):
    self._process = process
    self._owner = owner
    self._began = time.monotonic()
    # Threads may look at the same process; a signal handler may interrupt a look with another one.
    self._lock = threading.RLock()
    self.pid = process.pid
    self.log_path = log_path
    self.returncode: int | None = None
    self.secs = 0.0

  def poll(self) -> int | None:
    """Returns the exit code, None while it runs. What an ended command has left running is killed."""
    with self._lock:
      if self.returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        # It has ended but is not yet waited for: until then its group's number cannot become another's.
        self._signal_group(signal.SIGKILL)
        self.secs = time.monotonic() - self._began
        self.returncode = self._process.wait()
        self._owner.forget(self.pid)
      return self.returncode

  def wait(self, timeout: float | None = None) -> int:
    """Waits for the end and returns the exit code.

    Raises:
      TimeoutError: if it still runs after `timeout` seconds, with the end of its log.
    """
    began = time.monotonic()
    while (code := self.poll()) is None:
      if timeout is not None and time.monotonic() - began > timeout:
        raise TimeoutError(f"process {self.pid} still runs after {timeout} s. {self.log_path} ends:\n{self.log()}")
      time.sleep(POLL_SECS)
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal to the command alone; nothing if it has ended."""
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.kill(self.pid, number)

  def terminate(self) -> None:
    """Sends SIGTERM to the command alone."""
    self.send_signal(signal.SIGTERM)

  def kill(self) -> None:
    """Sends SIGKILL to the command and all that it started, as the loss of a machine would. Does not wait."""
    if self.poll() is None:
      self._signal_group(signal.SIGKILL)

  def log(self, last_chars: int = 4000) -> str:
    """Returns the end of what it has written so far."""
    return self.log_path.read_text("utf-8", errors="replace")[-last_chars:]

  def _signal_group(self, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.pid, number)
