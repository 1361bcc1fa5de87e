"""The config reference says what the dataclasses say."""

import dataclasses
from pathlib import Path
from typing import Literal

from official_trainer.config import hints, reference
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.fields import Count, Fraction, setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "config.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
  """Settings of a part."""

  share: Fraction = setting(0.5, "A share.")
  old: int = setting(0, "Old.", only_default="Use share instead.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
  """The whole."""

  part: Inner = setting(text="A part.", factory=Inner)
  steps: tuple[Count, ...] = setting((1, 2), "Steps.")
  word: Literal["a", "b"] | None = setting(None, "A word | or none.")
  parts: tuple[Inner, ...] = setting((), "More parts.")


def every_field(cls: type):
  for name, field in hints.fields_of(cls).items():
    yield cls, name, field
    if (group := hints.group_in(hints.hints_of(cls)[name])) is not None:
      yield from every_field(group)


def test_the_committed_page_is_current():
  hint = "run: python -m official_trainer.config.reference > docs/reference/config.md"
  assert PAGE.read_text("utf-8") == reference.markdown(), hint


def test_every_setting_has_a_text():
  assert [f"{c.__name__}.{n}" for c, n, field in every_field(ExperimentConfig) if not field.metadata.get("text")] == []


def test_values_defaults_and_limits_are_shown():
  text = reference.markdown(Outer)
  assert "## `part`\n\nSettings of a part.\n" in text
  assert "| `share` | a number ≥ 0 and ≤ 1 | `0.5` | A share. |" in text


def test_names_kept_for_compatibility_stand_apart():
  section = reference.markdown(Outer).partition("## `part`")[2].partition("## `parts.0`")[0]
  table, _, kept = section.partition("refused:")
  assert "`old`" not in table
  assert "- `old` (`0`): Use share instead." in kept


def test_groups_in_a_list_have_a_section():
  assert "## `parts.0`" in reference.markdown(Outer)
