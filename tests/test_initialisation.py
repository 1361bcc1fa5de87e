import types

import numpy as np
import pytest

from official_trainer.checkpoint.config import InitConfig
from official_trainer.config.experiment import TaskConfig
from official_trainer.errors import CheckpointMismatch, ConfigError
from official_trainer.initialisation import initialise, require_sources
from tests.backbones import BACKBONE, HEAD, build_backbone, classifier, numbered, values


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Weights of a classifier of ten classes (numbers from 1), and of a backbone alone (numbers from 50)."""
  folder = tmp_path_factory.mktemp("files")
  numbered(classifier(10)).save_weights(folder / "whole.h5")
  numbered(build_backbone(), start=50.0).save_weights(folder / "backbone.h5")
  return folder


def whole(files, **rules):
  return InitConfig(checkpoint=f"{files}/whole.h5", **rules)


def backbone(files, **rules):
  return InitConfig(checkpoint=f"{files}/backbone.h5", **{"target_prefix": "backbone", **rules})


def first_numbers(model):
  return [float(value.reshape(-1)[0]) for value in values(model)]


def test_without_a_source_nothing_changes():
  model = classifier()
  initial = values(model)
  for config in (TaskConfig(), TaskConfig(init=InitConfig()), types.SimpleNamespace(), types.SimpleNamespace(init="x")):
    assert initialise(model, config) == []
  for found, expected in zip(values(model), initial, strict=True):
    np.testing.assert_array_equal(found, expected)


def test_a_variable_takes_its_value_from_the_first_source_that_has_one(files):
  model = numbered(classifier(), start=100.0)
  reports = initialise(
    model, TaskConfig(init=whole(files, skip=("^head/", "stem", "norm")), init_backbone=backbone(files))
  )
  assert [report.key for report in reports] == ["task.init", "task.init_backbone"]
  assert list(reports[0].loaded) == BACKBONE[6:]
  assert list(reports[1].loaded) == BACKBONE[:6]
  assert reports[1].given == tuple(BACKBONE[6:])
  assert first_numbers(model) == [*range(50, 56), 7, 8, 108, 109]


def test_a_second_source_that_is_not_needed_changes_nothing_and_need_not_fit(files):
  model = classifier(10)
  reports = initialise(model, TaskConfig(init=whole(files), init_backbone=backbone(files)))
  assert list(reports[0].loaded) == BACKBONE + HEAD
  assert reports[1].loaded == {} and reports[1].given == tuple(BACKBONE)
  assert first_numbers(model) == list(range(1, 11))
  assert "task.init_backbone: 0 variables initialised" in reports[1].summary()
  assert "8 given before" in reports[1].summary()


def test_what_both_sources_lack_is_named_at_once_and_nothing_is_assigned(files):
  model = numbered(classifier(), start=100.0)
  config = TaskConfig(
    init=whole(files, source_prefix="head", target_prefix="head"),
    init_backbone=backbone(files, name_map=(("^stem", "stm"),)),
  )
  with pytest.raises(CheckpointMismatch) as raised:
    initialise(model, config)
  assert "! head/kernel [2, 2] vs [2, 10]" in str(raised.value)
  assert "- backbone/stem/kernel [3, 4] Did you mean 'stem/kernel'?" in str(raised.value)
  assert "add these to `task.init_backbone.skip`" in str(raised.value)
  assert first_numbers(model) == list(range(100, 110))


def test_every_pattern_of_both_sources_that_matches_nothing_is_named_at_once(files):
  with pytest.raises(ConfigError) as raised:
    initialise(
      classifier(), TaskConfig(init=whole(files, skip=("haed",)), init_backbone=backbone(files, skip=("stme",)))
    )
  assert [problem.path for problem in raised.value.problems] == ["task.init.skip.0", "task.init_backbone.skip.0"]


def test_both_missing_files_are_named_at_once_with_their_keys(files):
  config = TaskConfig(init=InitConfig(checkpoint="nowhere/a"), init_backbone=InitConfig(checkpoint="nowhere/b"))
  for check in (require_sources, lambda config: initialise(classifier(), config)):
    with pytest.raises(ConfigError) as raised:
      check(config)
    assert [problem.path for problem in raised.value.problems] == [
      "task.init.checkpoint",
      "task.init_backbone.checkpoint",
    ]
  require_sources(TaskConfig(init=whole(files), init_backbone=backbone(files)))
  require_sources(TaskConfig())


def test_a_config_of_another_library_may_have_the_same_settings(files):
  config = types.SimpleNamespace(init={"checkpoint": f"{files}/whole.h5", "skip": ["^head/"]}, init_backbone=None)
  assert list(initialise(classifier(), config)[0].loaded) == BACKBONE
