"""The one exit code of many processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from official_trainer.errors import DONE, HANG, RESTART


@dataclasses.dataclass(frozen=True)
class End:
  """How one process ended.

  Attributes:
    job: "chief", "worker", "ps" or "evaluator".
    index: of the task in its job.
    code: as in `subprocess`: -N after signal N.
    was_late: whether it had to be killed, since it did not end after the others had.
  """

  job: str
  index: int
  code: int
  was_late: bool = False


def exit_code(ends: Sequence[End]) -> int:
  """Returns the exit code of a cluster.

  The process that failed first says why; that a peer was lost (42), or that one was killed, is a consequence.

  - The first code of a process that failed by itself: a wrong config on one worker makes the others end with 42, and
    starting again would not help.
  - 42 if any process says so: one was killed, the others saved and ask for another start.
  - 128 + N if all that is known is that signal N killed one.
  - 43 if one did not end after the others had.
  - 0.

  With parameter servers the job is the coordinator's: what happens to workers and servers counts only where the
  coordinator was killed itself. An evaluator that fails makes a job that succeeded fail.

  Args:
    ends: of every process, in the order in which they ended.
  """
  if any(end.job == "chief" for end in ends):
    coordinator = [end for end in ends if end.job == "chief"]
    killed = any(end.code < 0 and not end.was_late for end in coordinator)
    ends = ends if killed else [*coordinator, *(end for end in ends if end.job == "evaluator")]
  own = [end.code for end in ends if not end.was_late]
  failed = [code for code in own if code > 0 and code != RESTART]
  if failed:
    return failed[0]
  if RESTART in own:
    return int(RESTART)
  killed_by = [-code for code in own if code < 0]
  if killed_by:
    return 128 + killed_by[0]
  # An evaluator may have waited for checkpoints that do not come any more.
  return int(HANG if any(end.was_late and end.job != "evaluator" for end in ends) else DONE)
