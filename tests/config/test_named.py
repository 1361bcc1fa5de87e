import pytest

from official_trainer.config.named import Named
from official_trainer.errors import ConfigError


def one():
  return 1


def other():
  return 2


def test_what_is_registered_is_found_and_a_module_may_be_loaded_again():
  named = Named("colour")
  assert named.register("red")(one) is one
  named.register("red")(one)
  assert named.find("red", "a.b") is one and "red" in named and list(named) == ["red"]


def test_two_things_of_one_name_are_refused_with_both():
  named = Named("colour", {"red": one})
  with pytest.raises(ConfigError, match="colour 'red': is registered twice: by .*:one and by .*:other"):
    named.register("red")(other)


def test_a_name_that_is_not_there_is_refused_with_the_nearest_and_all():
  named = Named("colour", {"red": one, "blue": other})
  with pytest.raises(ConfigError, match=r"a.b: there is no colour 'rad'. Did you mean 'red'\? Known: blue, red\."):
    named.find("rad", "a.b")
  assert named.problem("red") is None
  assert "Known: none." in Named("colour").problem("red")
