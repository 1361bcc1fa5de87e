"""The errors a user meets, and the exit code of each."""

import contextlib
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence


class ExitCode(enum.IntEnum):
  """What the process tells whoever started it."""

  DONE = 0
  ERROR = 1
  CONFIG = 2
  DIVERGED = 3
  RESTART = 42
  HANG = 43
  INTERRUPTED = 130


DONE = ExitCode.DONE
ERROR = ExitCode.ERROR
CONFIG = ExitCode.CONFIG
DIVERGED = ExitCode.DIVERGED
RESTART = ExitCode.RESTART
HANG = ExitCode.HANG
INTERRUPTED = ExitCode.INTERRUPTED


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where a value was written: the layer that set it, and the file and line if there are any."""

  layer: str
  file: str | None = None
  line: int | None = None

  def __str__(self) -> str:
    place = self.file or ""
    if place and self.line is not None:
      place = f"{place}:{self.line}"
    if not place:
      return self.layer
    return place if self.layer == "config_file" else f"{self.layer}, {place}"


DEFAULT = Origin("default")


@dataclasses.dataclass(frozen=True)
class Problem:
  """One thing wrong: the dotted key or flag, what to do about it, and where it was set."""

  path: str
  message: str
  origin: Origin | None = None

  def __str__(self) -> str:
    source = f"   (from {self.origin})" if self.origin is not None and self.origin != DEFAULT else ""
    first, *rest = self.message.splitlines() or [""]
    lines = [f"{self.path}: {first}", *(f"  {line}" for line in rest)]
    return "\n".join(lines) + source


class ConfigError(ValueError):
  """The configuration cannot be used. Raised before anything is built, with every problem at once.

  Attributes:
    problems: what is wrong, in the order of discovery.
    experiment: name of the experiment, or None when it is not known yet.
  """

  def __init__(self, problems: Iterable[Problem], experiment: str | None = None):
    self.problems = tuple(problems)
    self.experiment = experiment
    super().__init__(self.problems, experiment)

  @classmethod
  def of(cls, path: str, message: str, origin: Origin | None = None) -> "ConfigError":
    """Returns an error with a single problem."""
    return cls([Problem(path, message, origin)])

  def __str__(self) -> str:
    count = len(self.problems)
    head = f"{count} problem" + ("s" if count != 1 else "")
    if self.experiment:
      head += f" in experiment '{self.experiment}'"
    return "\n".join([head, *_indented(self.problems)])


@contextlib.contextmanager
def gathered(problems: list[Problem]) -> Iterator[None]:
  """Adds the problems of a ConfigError in the body to a list, so that those of other parts are found as well."""
  try:
    yield
  except ConfigError as error:
    problems += error.problems


def first_of(names: Sequence[object], most: int = 5) -> str:
  """Returns the first `most` of many names for people, and how many more there are."""
  more = f" and {len(names) - most} more" if len(names) > most else ""
  return ", ".join(map(str, names[:most])) + more


class CheckpointMismatch(ValueError):
  """A checkpoint does not fit the model it is read into."""


class BrokenCheckpoint(ValueError):
  """A checkpoint's files are not what its manifest says, or there is nothing whole to go on from."""


class NotWritten(OSError):
  """A file of a run could not be written: a full disk, a read-only folder, a limit.

  Attributes:
    path: the file, or the prefix of a checkpoint's files.
    reason: what the file system says, e.g. "No space left on device".
  """

  def __init__(self, path: str, reason: str):
    self.path = path
    self.reason = reason
    super().__init__(f"{path} could not be written: {reason}.")

  def __reduce__(self) -> tuple[type, tuple[str, str]]:
    return type(self), (self.path, self.reason)


class TrainingDiverged(RuntimeError):
  """Training produced something that must not be saved or reported as a result.

  Attributes:
    step: completed updates when it was noticed.
    what: the quantity and its value, e.g. "the training loss is nan".
    start: completed updates before the inner loop in which it was noticed, or None before the first one.
    window: (first, end) of the batches of the stream that this loop used, or None.
    tried: what going back left out before, one text for each attempt.
  """

  def __init__(
    self,
    step: int,
    what: str,
    *,
    start: int | None = None,
    window: tuple[int, int] | None = None,
    tried: Sequence[str] = (),
  ):
    self.step = step
    self.what = what
    self.start = start
    self.window = window
    self.tried = tuple(tried)
    super().__init__(step, what)

  def __str__(self) -> str:
    if self.window is None:
      return f"at step {self.step}: {self.what}"
    first, end = self.window
    lines = [
      f"at step {self.step}: {self.what}. It happened after step {self.start}; nothing of it was saved.",
      *(f"  tried: {text}" for text in self.tried),
      "Started again, the run goes on from the last good checkpoint. To step over these batches add",
      f"[{first}, {end}] to task.train_data.skip_steps; trainer.recovery_max_trials makes the run do so by itself.",
    ]
    return "\n".join(lines)


class Preempted(RuntimeError):
  """The run was asked to stop, saved its state where it saves any, and goes on when started again.

  Attributes:
    step: completed updates that the saved state holds, or that are lost.
    reason: what asked for the stop, e.g. "SIGTERM".
    code: the exit code; RESTART unless a person pressed Ctrl-C.
    is_saved: whether there is a saved state: not in a run that saves none.
  """

  def __init__(self, step: int, reason: str, code: ExitCode = RESTART, is_saved: bool = True):
    self.step = step
    self.reason = reason
    self.code = code
    self.is_saved = is_saved
    super().__init__(step, reason, code, is_saved)

  @property
  def reached(self) -> int:
    """Completed updates when the run ended: all of them are saved."""
    return self.step

  def __str__(self) -> str:
    then = "the same command continues from there" if self.is_saved else "nothing was saved, as it was configured"
    return f"stopped by {self.reason} after step {self.step}; {then}"


class PeerLost(RuntimeError):
  """Another process of the run is gone, and this one cannot go on without it. Nothing was saved on leaving.

  Attributes:
    step: completed updates that the newest checkpoint holds.
    who: the process that is gone, e.g. "worker 1", or what is known about it.
    reached: completed updates when it was noticed.
    code: the exit code.
  """

  def __init__(self, step: int, who: str, reached: int, code: ExitCode = RESTART):
    self.step = step
    self.who = who
    self.reached = reached
    self.code = code
    super().__init__(step, who, reached, code)

  def __str__(self) -> str:
    return f"{self.who} is gone; started again, with all its processes, the run continues from step {self.step}"


class ExportRefused(RuntimeError):
  """An export was withdrawn: loaded again, it does not do what the model in memory does, or cannot be loaded.

  Attributes:
    folder: where it would have been.
    reason: what differs.
  """

  def __init__(self, folder: str, reason: str):
    self.folder = folder
    self.reason = reason
    super().__init__(folder, reason)

  def __str__(self) -> str:
    return f"the export to {self.folder} is withdrawn: {self.reason}"


class ReplicasDiffer(RuntimeError):
  """Values that must be the same on every replica or in every process are not."""


def exit_code(error: BaseException) -> ExitCode:
  """Returns the exit code of the process that ended with `error`."""
  match error:
    case ConfigError():
      return CONFIG
    case TrainingDiverged():
      return DIVERGED
    case Preempted() | PeerLost():
      return error.code
    case KeyboardInterrupt():
      return INTERRUPTED
    case _:
      return ERROR


def _indented(problems: Iterable[Problem]) -> Iterable[str]:
  for problem in problems:
    for line in str(problem).splitlines():
      yield f"  {line}"
