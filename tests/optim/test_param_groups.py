import pytest

from official_trainer.errors import ConfigError
from official_trainer.optim.config import ParamGroupConfig
from official_trainer.optim.param_groups import Membership, assign

PATHS = ["embeddings/table", "encoder/layer_0/kernel", "encoder/layer_1/kernel", "encoder/layer_1/bias", "head/kernel"]


def rule(pattern, **settings):
  return ParamGroupConfig(pattern=pattern, **settings)


def test_the_first_rule_that_matches_counts_and_the_rest_is_the_default_group():
  members = assign(PATHS, [rule("bias$", weight_decay=0.0, name="biases"), rule("encoder", lr_multiplier=0.1)])
  assert [members[path].group for path in PATHS] == ["default", "encoder", "encoder", "biases", "default"]
  assert members["encoder/layer_1/bias"] == Membership(group="biases", weight_decay=0.0, rule=0)
  assert members["head/kernel"] == Membership()


def test_patterns_are_searched_anywhere_in_the_path():
  assert assign(PATHS, [rule("layer_1/k")])["encoder/layer_1/kernel"].group == "layer_1/k"


def test_a_rule_that_matches_nothing_is_refused_with_the_nearest_paths():
  with pytest.raises(ConfigError) as error:
    assign(PATHS, [rule("encodr/layer_0/kernel", frozen=True), rule("head"), rule("decoder")])
  text = str(error.value)
  assert "param_groups.0.pattern: 'encodr/layer_0/kernel' matches no trainable variable." in text
  assert "The nearest: 'encoder/layer_0/kernel'" in text
  assert "param_groups.2.pattern: 'decoder'" in text


def test_a_rule_whose_variables_are_all_taken_is_refused_with_who_has_them():
  with pytest.raises(ConfigError, match="matches only variables that rules before it have, such as 'head/kernel'"):
    assign(PATHS, [rule("kernel"), rule("head")])


def test_layer_decay_grows_with_the_distance_from_the_head():
  members = assign(PATHS, [rule(r"embeddings|encoder/layer_(\d+)/", layer_decay=0.5, lr_multiplier=0.8)])
  factors = {path: member.layer_factor for path, member in members.items()}
  assert factors == {
    "embeddings/table": 0.125,
    "encoder/layer_0/kernel": 0.25,
    "encoder/layer_1/kernel": 0.5,
    "encoder/layer_1/bias": 0.5,
    "head/kernel": 1.0,
  }
  assert members["embeddings/table"].lr_multiplier == 0.8


def test_layer_decay_without_a_number_in_the_path_is_refused():
  with pytest.raises(ConfigError, match="needs a number as the pattern's group, but 'head/kernel' has none"):
    assign(PATHS, [rule("(head|encoder)/", layer_decay=0.5)])
