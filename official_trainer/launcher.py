"""`official-trainer-cluster`: starts a cluster of real processes on this machine, for development.

    official-trainer-cluster --workers 2 -- --experiment=digits/cnn --mode=train --model_dir=runs/two
    official-trainer-cluster --workers 2 --ps 1 --evaluator -- --experiment=digits/cnn ...

The arguments after `--` go to `python -m official_trainer.train` in every process; TF_CONFIG tells each what it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from official_trainer import errors
from official_trainer.processes.local_cluster import TRAINER, LocalCluster

__all__ = ["LocalCluster", "console_main", "help_text", "main", "parse"]


def main(argv: Sequence[str], program: Sequence[str] = TRAINER) -> int:
  """Runs the program.

  Args:
    argv: the command line, without the program's name.
    program: what is started in each process.

  Returns:
    The exit code of the cluster, see `processes.verdict.exit_code`.
  """
  options, arguments = parse(argv)
  cluster = LocalCluster(
    workers=options.workers,
    ps=options.ps,
    evaluator=options.evaluator,
    arguments=arguments,
    program=program,
    log_dir=options.log_dir or _logs_of(arguments),
    grace_secs=options.grace_secs,
    say=_say,
    show=_show,
  )
  _say(f"logs: {cluster.log_dir}")
  signals = _Signals(cluster)
  with signals, cluster:
    code = cluster.wait()
    for attempt in range(options.restarts):
      if code != errors.RESTART or signals.received:
        break
      _say(f"starting all again ({attempt + 1} of {options.restarts})")
      cluster.start()
      code = cluster.wait()
  return signals.exit_code(code)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns this program's options, and the trainer's arguments. Exits with code 2 if the command line is wrong."""
  argv = list(argv)
  own, arguments = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
  parser = _parser()
  options = parser.parse_args(own)
  if not arguments:
    parser.error("the trainer's arguments must be given after `--`, e.g. -- --experiment=digits/cnn --mode=train")
  if options.workers < 1 or options.ps < 0 or options.restarts < 0 or options.grace_secs <= 0:
    parser.error("--workers must be at least 1, --ps and --restarts at least 0, --grace_secs above 0")
  return options, arguments


def help_text() -> str:
  """Returns what --help prints."""
  return _parser().format_help()


def console_main() -> None:
  """Runs the program with the arguments of the process, and exits with its code."""
  sys.exit(main(sys.argv[1:]))


class _Signals:
  """The first SIGINT or SIGTERM is passed on to all, a second one kills all."""

  def __init__(self, cluster: LocalCluster):
    self._cluster = cluster
    self.received: list[int] = []

  def __enter__(self) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    self._before = {number: signal.signal(number, self._handle) for number in numbers}

  def __exit__(self, *error: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def exit_code(self, code: int) -> int:
    """Returns the code of the cluster; where a second signal killed it, what the first one asked for."""
    if len(self.received) < 2:
      return code
    return int(errors.INTERRUPTED if self.received[0] == signal.SIGINT else errors.RESTART)

  def _handle(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.received.append(number)
    name = signal.Signals(number).name
    if len(self.received) == 1:
      _say(f"{name}: passed on to all; once more kills them")
      self._cluster.stop(number)
    else:
      _say(f"{name} again: killing all")
      self._cluster.kill()


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="official-trainer-cluster",
    usage="%(prog)s --workers N [--ps N] [--evaluator] [options] -- ARGUMENTS OF THE TRAINER",
    description="Starts a cluster of real processes on this machine, for development.",
    allow_abbrev=False,
  )
  parser.add_argument("--workers", type=int, required=True, metavar="N", help="number of workers")
  parser.add_argument("--ps", type=int, default=0, metavar="N", help="number of parameter servers (default: none)")
  parser.add_argument("--evaluator", action="store_true", help="one more process that evaluates the checkpoints")
  parser.add_argument("--restarts", type=int, default=0, metavar="N", help="times to start all again after code 42")
  parser.add_argument("--grace_secs", type=float, default=60.0, metavar="SECS", help="time for the others to end")
  parser.add_argument("--log_dir", metavar="FOLDER", help="of the log files (default: logs/ in model_dir)")
  return parser


def _logs_of(arguments: Sequence[str]) -> str | None:
  """Returns the folder of logs inside the run's folder; None where that is not given, or not on this machine."""
  folder = None
  for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
    name, equals, value = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name == "model_dir":
      folder = value if equals else following
  return os.path.join(folder, "logs") if folder and "://" not in folder else None


def _say(text: str) -> None:
  print(f"[cluster] {text}", file=sys.stderr, flush=True)


def _show(text: str) -> None:
  sys.stdout.write(text)
  sys.stdout.flush()


if __name__ == "__main__":
  console_main()
