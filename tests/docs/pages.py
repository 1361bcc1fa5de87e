"""Reads the documentation: its pages, code blocks, links and commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda page: page.relative_to(ROOT).as_posix())

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
  """A fenced block of code: its language, its text, and the line of the page where it begins."""

  language: str
  text: str
  line: int

  @property
  def file(self) -> str | None:
    """The path that the first line of a Python block gives to a file, or None for a block that is run."""
    match = _FILE.match(self.text) if self.language == "python" else None
    return match.group(1) if match else None


def name_of(page: Path) -> str:
  return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str = "") -> list[Block]:
  """Returns the fenced blocks of a page, all or those of one language, in order."""
  text = page.read_text("utf-8")
  found = [Block(m.group(1), m.group(2), text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]
  return [block for block in found if not language or block.language == language]


def prose(page: Path) -> str:
  """Returns a page without its fenced blocks."""
  return _FENCE.sub("", page.read_text("utf-8"))


def links(page: Path) -> Iterator[str]:
  """Yields the targets of all links."""
  yield from (match.group(1) for match in _LINK.finditer(prose(page)))


def anchors(page: Path) -> set[str]:
  """Returns the names of a page's headings as links give them."""
  titles = (re.sub(r"[^\w\s-]", "", title.lower()) for title in _HEADING.findall(prose(page)))
  return {title.strip().replace(" ", "-") for title in titles}


def inline_code(page: Path) -> Iterator[str]:
  """Yields what stands in single backticks."""
  yield from _INLINE.findall(prose(page))


def commands(page: Path) -> Iterator[list[str]]:
  """Yields the words of each line of the page's shell blocks; a backslash at its end continues a line."""
  for block in blocks(page, "shell"):
    for line in block.text.replace("\\\n", " ").splitlines():
      if words := shlex.split(line, comments=True):
        yield words


def trainings(page: Path) -> Iterator[list[str]]:
  """Yields the arguments of each command that starts `official_trainer.train`, once or in several processes."""
  for words in commands(page):
    if words[0] == "official-trainer-cluster":
      yield words[words.index("--") + 1 :]
    if "official_trainer.train" in words:
      rest = words[words.index("official_trainer.train") + 1 :]
      yield rest[: rest.index("&&")] if "&&" in rest else rest


def write_files(page: Path, folder: Path) -> None:
  """Writes the Python blocks that are files of a reader's own."""
  for block in blocks(page, "python"):
    if block.file:
      path = folder / block.file
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(block.text, "utf-8")
