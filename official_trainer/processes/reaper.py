"""A program that outlives its starter for a moment: it kills the process groups that the starter left behind.

Run as a file with the read end of a pipe as standard input. Every line is "+ID" when a group begins and "-ID" when it
has ended. The pipe ends when all that can write to it have ended, also by SIGKILL; what is then left is killed.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def left_behind(lines: Iterable[str]) -> set[int]:
  """Reads to the end and returns the groups that began and have not ended."""
  groups: set[int] = set()
  for line in lines:
    group = int(line[1:])
    if line[0] == "+":
      groups.add(group)
    else:
      groups.discard(group)
  return groups


def main() -> None:
  # A signal to the starter, or to the terminal's processes, is not for this one.
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for group in left_behind(sys.stdin):
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
  main()
