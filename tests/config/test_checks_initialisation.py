import re

import pytest

from official_trainer.checkpoint.config import InitConfig, has_pretrained_source
from official_trainer.config import checks
from official_trainer.config.base import from_dict, from_yaml, to_yaml
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.loading import load


def problems(**task):
  config = from_dict(ExperimentConfig, {"task": task})
  return {problem.path: problem.message for problem in checks.problems(config)}


def test_a_complete_source_is_no_problem():
  rules = {"checkpoint": "a", "name_map": [[r"(\w+)/w", r"\1/kernel"]], "skip": ["^head/"], "resize": [["pos", "f"]]}
  assert problems(init=rules, init_backbone={"checkpoint": "b"}) == {}


def test_both_ways_of_initialising_at_once_are_refused():
  found = problems(init={"checkpoint": "a"}, init_checkpoint="b")
  assert list(found) == ["task.init_checkpoint"]
  assert "must be empty where task.init is given, got 'b'" in found["task.init_checkpoint"]


@pytest.mark.parametrize(
  ("rules", "key", "message"),
  [
    ({}, "checkpoint", "must name a file or a folder"),
    ({"checkpoint": "a", "skip": ["ok", "("]}, "skip.1", r"must be a regular expression (.*), got '\('"),
    ({"checkpoint": "a", "resize": [["*", "position_embedding"]]}, "resize.0", "must be a regular expression"),
    ({"checkpoint": "a", "name_map": [["a", "b"], ["[", "b"]]}, "name_map.1", "must be a regular expression"),
    ({"checkpoint": "a", "name_map": [["(a)", r"\2"]]}, "name_map.0", "a replacement for it .*invalid group reference"),
    ({"checkpoint": "a", "name_map": [["(a)", r"\g<b>"]]}, "name_map.0", "a replacement for it .*unknown group name"),
  ],
)
@pytest.mark.parametrize("name", ["init", "init_backbone"])
def test_rules_that_cannot_be_applied_are_refused_with_their_keys(rules, key, message, name):
  found = problems(**{name: rules})
  assert list(found) == [f"task.{name}.{key}"]
  assert re.search(message, found[f"task.{name}.{key}"])


def test_rules_survive_being_written_and_read():
  config = ExperimentConfig(
    task=TaskConfig(init=InitConfig(checkpoint="a", name_map=(("^a.b/", r"\1"),), resize=(("pos", "f"),), skip=("x",)))
  )
  assert from_yaml(ExperimentConfig, to_yaml(config)) == config


def test_rules_can_be_given_on_the_command_line():
  loaded = load(
    experiment="digits/mlp",
    params_override="task.init.checkpoint=runs/a,task.init.skip=['^head/'],task.init.name_map=[['^a/','b/'],['c','d']]",
  )
  init = loaded.config.task.init
  assert (init.checkpoint, init.skip, init.name_map) == ("runs/a", ("^head/",), (("^a/", "b/"), ("c", "d")))


@pytest.mark.parametrize(
  ("task", "expected"),
  [
    (TaskConfig(), False),
    (TaskConfig(init=InitConfig()), False),
    (TaskConfig(init=InitConfig(checkpoint="a")), True),
    (TaskConfig(init_backbone=InitConfig(checkpoint="a")), True),
    (TaskConfig(init_checkpoint="a"), True),
    (object(), False),
  ],
)
def test_a_pretrained_source_is_seen_and_the_keys_of_all_are_known(task, expected):
  keys = ["task.init.checkpoint", "task.init_backbone.checkpoint", "task.init_checkpoint"]
  assert has_pretrained_source(task) == (expected, keys)
