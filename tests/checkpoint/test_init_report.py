import dataclasses

import pytest

from official_trainer.checkpoint.init_report import InitReport, Spec
from official_trainer.errors import CheckpointMismatch

REPORT = InitReport(
  key="task.init",
  source="resnet/ckpt-9000 with 'backbone/' -> 'encoder/'",
  loaded={"encoder/pos": "backbone/position", "encoder/w": "encoder/w"},
  skipped=("head/bias",),
  given=("neck/bias",),
  missing={"encoder/stem/bias": Spec((64,))},
  mismatched={
    "head/kernel": (Spec((2048, 1000)), Spec((2048, 10))),
    "steps": (Spec((), "int64"), Spec((), "float32")),
  },
  resized={"encoder/pos": "position_embedding"},
  unused={"backbone/stem/b": Spec((64,))},
)
COMPLETE = dataclasses.replace(REPORT, missing={}, mismatched={})


def test_a_mismatch_lists_everything_at_once_and_the_lines_to_add():
  with pytest.raises(CheckpointMismatch) as raised:
    REPORT.require_complete()
  assert str(raised.value).splitlines() == [
    "cannot initialise from resnet/ckpt-9000 with 'backbone/' -> 'encoder/':",
    "  in the model, not in the checkpoint (1):",
    "    - encoder/stem/bias [64] Did you mean 'backbone/stem/b'?",
    "  shapes differ (1):",
    "    ! head/kernel [2048, 1000] vs [2048, 10]",
    "  types differ (1):",
    "    ! steps int64 [] vs float32 []",
    "  in the checkpoint, not used (1):",
    "    + backbone/stem/b [64]",
    "Map names with `task.init.name_map`, or add these to `task.init.skip` to keep initial values:",
    "  - '^encoder/stem/bias$'",
    "  - '^head/kernel$'",
    "  - '^steps$'",
  ]


def test_values_that_nobody_takes_are_an_error_only_where_that_was_asked_for():
  COMPLETE.require_complete()
  with pytest.raises(CheckpointMismatch) as raised:
    COMPLETE.require_complete(allow_unused=False)
  assert str(raised.value).splitlines()[1:] == [
    "  in the checkpoint, not used (1):",
    "    + backbone/stem/b [64]",
    "What is not used is an error because `task.init.allow_unused` is false.",
  ]


def test_of_many_unused_values_the_error_shows_the_first_ones():
  many = dataclasses.replace(REPORT, unused={f"value_{index}": Spec(()) for index in range(100)})
  with pytest.raises(CheckpointMismatch, match=r"not used \(100\):\n") as raised:
    many.require_complete()
  assert str(raised.value).count("+ value_") == 30 and "    and 70 more" in str(raised.value)


def test_the_summary_is_one_line_of_counts():
  assert REPORT.summary() == (
    "task.init: 2 variables initialised from resnet/ckpt-9000 with 'backbone/' -> 'encoder/'"
    " (1 skipped, 1 resized, 1 given before, 1 of the file unused)"
  )
  bare = dataclasses.replace(COMPLETE, skipped=(), given=(), resized={}, unused={})
  assert bare.summary().endswith("-> 'encoder/'")


def test_the_text_lists_what_came_from_where():
  assert COMPLETE.text().splitlines()[1:] == [
    "  loaded (2):",
    "    = encoder/pos <- backbone/position by position_embedding",
    "    = encoder/w",
    "  skipped (1):",
    "    . head/bias",
    "  given before (1):",
    "    . neck/bias",
    "  in the checkpoint, not used (1):",
    "    + backbone/stem/b [64]",
  ]
