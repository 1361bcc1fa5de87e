"""What `make soak` writes into docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kill.driver import Kill

BEGIN = "<!-- soak: begin, written by make soak -->"
END = "<!-- soak: end -->"
_BETWEEN = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)


class Soaked(NamedTuple):
  """A run that was killed and ended with the bits of the uninterrupted one."""

  replicas: str
  seed: int
  kills: tuple[Kill, ...]


def write(page: Path, runs: Sequence[Soaked], train_steps: int) -> None:
  """Puts the report between the two marks of a page.

  Raises:
    ValueError: if the page has no such marks.
  """
  text = page.read_text("utf-8")
  if not _BETWEEN.search(text):
    raise ValueError(f"{page} has no place for the report: {BEGIN} ... {END}")
  page.write_text(_BETWEEN.sub(lambda _: f"{BEGIN}\n\n{render(runs, train_steps)}\n{END}", text), "utf-8")


def render(runs: Sequence[Soaked], train_steps: int) -> str:
  """Returns the report as Markdown."""
  kills = [kill for run in runs for kill in run.kills]
  lines = [
    f"{len(kills)} SIGKILLs in {len(runs)} runs of {train_steps} steps: {sum(kill.step < 0 for kill in kills)} of them"
    f" before the first report, {sum(kill.cut_off for kill in kills)} in the middle of a save. After each, the best"
    " weights loaded and were not worse than before. Each run ended with the bits of the uninterrupted one, and left no"
    " file of an unfinished write.",
    "",
    "| replicas | seed of the moments | newest report at each kill | the end |",
    "| --- | --- | --- | --- |",
  ]
  for run in runs:
    steps = " ".join("-" if kill.step < 0 else str(kill.step) for kill in run.kills)
    lines.append(f"| {run.replicas} | {run.seed} | {steps} | equal |")
  return "\n".join(lines) + "\n"
