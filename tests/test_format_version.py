import pytest

from official_trainer.format_version import upgraded

UPGRADES = {
  1: lambda values: {**values, "seconds": values["minutes"] * 60},
  2: lambda values: {name: value for name, value in values.items() if name != "minutes"},
}


def test_every_version_is_brought_into_the_present_form_step_by_step():
  now = {"format_version": 3, "seconds": 120}
  assert upgraded({"format_version": 1, "minutes": 2}, 3, UPGRADES, "it") == now
  assert upgraded({"format_version": 2, "minutes": 2, "seconds": 120}, 3, UPGRADES, "it") == now
  assert upgraded(now, 3, UPGRADES, "it") == now


def test_a_newer_version_is_refused_by_name():
  with pytest.raises(ValueError, match="the record has format 4; this version reads up to 3. Update"):
    upgraded({"format_version": 4}, 3, UPGRADES, "the record")


def test_what_says_no_version_is_no_file_of_ours():
  with pytest.raises(KeyError, match="format_version"):
    upgraded({"minutes": 1}, 3, UPGRADES, "it")
