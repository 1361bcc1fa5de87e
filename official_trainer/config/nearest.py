"""Finds what somebody probably meant."""

from collections.abc import Iterable


def nearest(word: str, allowed: Iterable[str], count: int = 1) -> list[str]:
  """Returns up to `count` allowed words that resemble `word`, the nearest first."""
  import difflib

  return difflib.get_close_matches(word, list(allowed), n=count, cutoff=0.6)


def meant(word: str, allowed: Iterable[str]) -> str:
  """Returns " Did you mean '...'?" for the nearest allowed word, or nothing when none is near."""
  found = nearest(word, allowed)
  return f" Did you mean '{found[0]}'?" if found else ""
