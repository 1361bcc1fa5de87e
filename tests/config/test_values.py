import dataclasses
from typing import Annotated, Any, Literal

import annotated_types as limits
import pytest

from official_trainer.config import values
from official_trainer.config.fields import AboveZero, Count, Fraction, Positive


def no_build(kind, value, path):
  raise AssertionError("no dataclass expected")


def read(hint, value):
  checked, problem = values.check(hint, values.convert(hint, value, "a.b", no_build))
  return checked if problem is None else problem


@pytest.mark.parametrize(
  ("hint", "value", "result"),
  [
    (float, "1e-3", 1e-3),
    (float, 1, 1.0),
    (float, " 2.5", 2.5),
    (int, 1e4, 10000),
    (int, "1e4", 10000),
    (int, "10", 10),
    (int, "90071992547409931", 90071992547409931),
    (bool, "yes", True),
    (bool, "off", False),
    (str, "10", "10"),
    (int | None, None, None),
    (int | None, "None", None),
    (str | None, "null", None),
    (float | None, "1e-3", 1e-3),
    (str | float | None, "1e-3", "1e-3"),
    (Literal["dynamic"] | AboveZero | None, "dynamic", "dynamic"),
    (Literal["dynamic"] | AboveZero | None, "1024", 1024.0),
    (tuple[int, ...], [1, "2", 3e0], (1, 2, 3)),
    (tuple[int, float], [1, 2], (1, 2.0)),
    (list[str], ("a",), ["a"]),
    (tuple[Positive, ...] | None, [1], (1,)),
    (str | tuple[str, ...] | dict[str, Any], ["a", "b"], ("a", "b")),
    (str | tuple[str, ...] | dict[str, Any], "a,b", "a,b"),
    (dict[str, float], {"a": "1e-3", "b": 2}, {"a": 1e-3, "b": 2.0}),
    (Any, {"a": [1]}, {"a": [1]}),
    (Fraction, 1, 1.0),
  ],
)
def test_a_value_becomes_the_type_that_is_wanted(hint, value, result):
  found = read(hint, value)
  assert found == result
  assert type(found) is type(result)


@pytest.mark.parametrize(
  ("hint", "value", "problem"),
  [
    (int, 10.5, "must be an integer, got 10.5."),
    (int, "10.5", "must be an integer, got '10.5'."),
    (int, "abc", "must be an integer, got 'abc'."),
    (int, True, "must be an integer, got true."),
    (int, None, "must be an integer, got null."),
    (int, float("inf"), "must be an integer, got inf."),
    (float, True, "must be a number, got true."),
    (float, "fast", "must be a number, got 'fast'."),
    (bool, 1, "must be true or false, got 1."),
    (str, 10, "must be text, got 10. Write it in quotes."),
    (str | None, 10, "must be text or null, got 10. Write it in quotes."),
    (Positive, 0, "must be at least 1, got 0."),
    (Count, -1, "must be at least 0, got -1."),
    (Fraction, 1.5, "must be at most 1, got 1.5."),
    (AboveZero, 0, "must be greater than 0, got 0.0."),
    (Annotated[int, limits.Ge(-1)], -2, "must be at least -1, got -2."),
    (Positive | None, 0, "must be at least 1, got 0."),
    (Literal["a", "b"], "c", "must be one of 'a', 'b', got 'c'."),
    (
      Literal["higher", "lower"] | None,
      "hihger",
      "must be one of 'higher', 'lower' or null, got 'hihger'. Did you mean 'higher'?",
    ),
    (tuple[int, ...], 3, "must be a list of integers, got 3."),
    (tuple[int, ...], "12", "must be a list of integers, got '12'."),
    (tuple[int, ...], [1, "x"], "must be a list of integers, got [1, 'x']."),
    (tuple[Positive, ...], [1, 0], "every value must be at least 1, got 0."),
    (tuple[int, int], [1], "must be a list of 2 values, got [1]."),
    (dict[str, int], [1], "must be a mapping, got [1]."),
  ],
)
def test_what_does_not_fit_is_refused_in_words(hint, value, problem):
  assert read(hint, value) == problem


def test_dataclasses_in_lists_are_built():
  @dataclasses.dataclass(frozen=True)
  class Rule:
    a: int

  built = values.convert(tuple[Rule, ...], [{"a": 1}], "x", lambda kind, value, path: (path, value))
  assert built == (("x.0", {"a": 1}),)
