import pytest

from official_trainer.config import overrides
from official_trainer.errors import ConfigError, Origin


@pytest.mark.parametrize(
  ("text", "values"),
  [
    ("a.b=1,a.c=2", {"a": {"b": 1, "c": 2}}),
    ("a.b = 1e-3 , d = x", {"a": {"b": 1e-3}, "d": "x"}),
    ("a=[1, 2],b={c: 3, d: [4]}", {"a": [1, 2], "b": {"c": 3, "d": [4]}}),
    ("a='x,y',b=\"p=q,r\"", {"a": "x,y", "b": "p=q,r"}),
    ("a=it's,b=1", {"a": "it's", "b": 1}),
    ("a=['x,y', z],b=1", {"a": ["x,y", "z"], "b": 1}),
    ("a.path=gs://bucket/x", {"a": {"path": "gs://bucket/x"}}),
    ("a=b=c", {"a": "b=c"}),
    ("a=", {"a": ""}),
    ("a=null", {"a": None}),
    ("a=off", {"a": "off"}),
    ("a=train[:90%]", {"a": "train[:90%]"}),
    ("a=1,", {"a": 1}),
    ("a.b=1,a.b=2", {"a": {"b": 2}}),
    ("a=null,a.b=2", {"a": {"b": 2}}),
    ("a: {b: 1}", {"a": {"b": 1}}),
    ('{"a": {"b": 1e-3}}', {"a": {"b": 1e-3}}),
    ("a:\n  b: 1\n  c: x=y\n", {"a": {"b": 1, "c": "x=y"}}),
  ],
)
def test_all_ways_to_write_an_override(text, values):
  document = overrides.parse(text)
  assert document.values == values
  assert document.problems == ()
  assert document.origin("--params_override", "a") == Origin("--params_override")


@pytest.mark.parametrize(
  ("text", "key"), [("warmup=5%,warmup.linear.rate=2", "warmup.linear.rate"), ("a.b=2,a=1", "a")]
)
def test_a_value_that_would_undo_another_one_of_the_same_text_is_refused(text, key):
  (problem,) = overrides.parse(text).problems
  assert problem.path == key
  assert "as a whole and in parts" in problem.message


@pytest.mark.parametrize("name", ["fast.yaml", "fast.yml", "fast.json"])
def test_a_file_name_is_read_as_a_file(tmp_path, name):
  path = tmp_path / name
  path.write_text('{"a":\n {"b": 1}}')
  document = overrides.parse(str(path))
  assert document.values == {"a": {"b": 1}}
  assert document.origin("--params_override", "a.b") == Origin("--params_override", str(path), 2)


def test_a_missing_file_is_named():
  with pytest.raises(ConfigError, match="--params_override: cannot read 'nowhere.yaml'"):
    overrides.parse("nowhere.yaml")


def test_a_part_that_is_no_assignment_does_not_hide_the_others():
  document = overrides.parse("a=1,b,c={,d=2")
  assert document.values == {"a": 1}
  assert [problem.path for problem in document.problems] == ["b", "c"]
  assert "key=value" in document.problems[0].message
  assert "quotes" in document.problems[1].message


def test_text_that_is_neither_is_refused():
  with pytest.raises(ConfigError, match="must hold keys and values"):
    overrides.parse("fast")
