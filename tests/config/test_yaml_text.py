import pytest
import yaml

from official_trainer.config import yaml_text
from official_trainer.errors import ConfigError, Origin


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("1e-3", 1e-3),
    ("2E5", 2e5),
    (".5", 0.5),
    ("1.", 1.0),
    ("-1.5e+2", -150.0),
    ("10", 10),
    ("1_000", 1000),
    ("010", 10),
    ("0x10", 16),
    ("true", True),
    ("null", None),
    ("~", None),
    ("off", "off"),
    ("no", "no"),
    ("1:30", "1:30"),
    ("2020-01-01", "2020-01-01"),
    ("train[:90%]", "train[:90%]"),
    ("[1, 2e0, x]", [1, 2.0, "x"]),
    ("'10'", "10"),
    ("e5", "e5"),
    ("-", "-"),
    (".inf", float("inf")),
  ],
)
def test_scalars_mean_what_people_expect(text, value):
  read = yaml_text.scalar(text) if text != "-" else yaml_text.scalar("'-'")
  assert read == value
  assert type(read) is type(value)


def test_every_key_has_its_line():
  document = yaml_text.read("trainer:\n  train_steps: 5\n\n  rules:\n  - {a: 1}\n  - a: 2\n", "f.yaml")
  assert dict(document.lines) == {
    "trainer": 1, "trainer.train_steps": 2, "trainer.rules": 4, "trainer.rules.0": 5,
    "trainer.rules.0.a": 5, "trainer.rules.1": 6, "trainer.rules.1.a": 6,
  }  # fmt: skip
  assert document.origin("config_file", "trainer.train_steps") == Origin("config_file", "f.yaml", 2)
  assert document.origin("config_file", "trainer.other.key").line == 1


def test_a_key_that_appears_twice_is_refused_with_both_lines():
  with pytest.raises(ConfigError, match=r"a\.b: appears twice, first in line 2.*from f\.yaml:3"):
    yaml_text.read("a:\n  b: 1\n  b: 2\n", "f.yaml")


def test_broken_yaml_is_named_with_its_line():
  with pytest.raises(ConfigError, match=r"cannot be read as YAML.*f\.yaml:2"):
    yaml_text.read("a: 1\nb: c: d\n", "f.yaml")


def test_a_list_is_no_config():
  with pytest.raises(ConfigError, match="must hold keys and values"):
    yaml_text.read("[1, 2]", "f.yaml")


def test_objects_are_not_built_from_yaml():
  with pytest.raises(ConfigError, match="cannot be read as YAML"):
    yaml_text.read("a: !!python/object/apply:os.getcwd []", "f.yaml")


def test_tuples_of_other_libraries_are_lists():
  assert yaml_text.read("a: !!python/tuple [1, 2]").values == {"a": [1, 2]}


def test_an_empty_file_holds_nothing():
  assert yaml_text.read("# only a comment\n").values == {}


def test_merge_keys_work():
  text = "x: &x {a: 1}\ny:\n  <<: *x\n  b: 2\n"
  assert yaml_text.read(text).values["y"] == {"a": 1, "b": 2}


VALUES = {
  "words": [
    "1e-3",
    "off",
    "no",
    "null",
    "true",
    "10",
    "1_0",
    "",
    "~",
    "a: b",
    "2020-01-01",
    "é",
    ".5",
  ],
  "numbers": [1e-3, 1e-07, 1e22, 1, -1, 0.1, float("inf")],
  "others": [None, True, False, []],
  "nested": {"a": [{"b": 1}, {"b": [1, 2]}]},
}


def test_what_is_written_reads_back_equal():
  assert yaml_text.read(yaml_text.dump(VALUES)).values == VALUES


def test_a_reader_of_yaml_1_1_sees_the_same():
  assert yaml.safe_load(yaml_text.dump(VALUES)) == VALUES


def test_a_missing_file_is_a_config_error():
  with pytest.raises(ConfigError, match="--config_file: cannot read 'nowhere.yaml': No such file"):
    yaml_text.read_file("nowhere.yaml")
