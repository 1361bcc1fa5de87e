import typing
from fractions import Fraction

import pytest

from official_trainer.config import durations, values
from official_trainer.config.durations import Duration, EvaluationSteps, PositiveSteps, Steps, TrainSteps


@pytest.mark.parametrize(
  ("text", "amount", "unit"),
  [
    ("90 epochs", 90, "epochs"),
    ("1 epoch", 1, "epochs"),
    ("1.5 epochs", Fraction(3, 2), "epochs"),
    ("1.1epochs", Fraction(11, 10), "epochs"),
    ("1_000_000 examples", 1_000_000, "examples"),
    ("1.2M examples", 1_200_000, "examples"),
    ("1e6 examples", 1_000_000, "examples"),
    ("3 k steps", 3000, "steps"),
    ("2B examples", 2_000_000_000, "examples"),
    ("5%", 5, "percent"),
    (" 2.5 % ", Fraction(5, 2), "percent"),
    ("10 percent", 10, "percent"),
    ("2000 steps", 2000, "steps"),
    ("1 step", 1, "steps"),
  ],
)
def test_an_amount_is_read_exactly_with_its_unit(text, amount, unit):
  assert durations.parse(text) == Duration(Fraction(amount), unit)


@pytest.mark.parametrize(
  "text", ["", "epochs", "90", "-1 epochs", "5k%", "1,000 examples", "90 epochs 5%", "1.2G examples"]
)
def test_what_is_no_duration_is_refused_with_what_is_allowed(text):
  allowed = "must be a number of steps, '90 epochs', '1.2M examples' or '5%' of trainer.train_steps, got "
  with pytest.raises(ValueError) as refused:
    durations.parse(text)
  assert str(refused.value).startswith(allowed + repr(text))


def test_a_misspelt_unit_is_recognised():
  with pytest.raises(ValueError, match=r"got '90 epocs'\. Did you mean 'epochs'\?"):
    durations.parse("90 epocs")


def read(hint, value):
  checked, problem = values.check(hint, values.convert(hint, value, "a", lambda *_: None))
  return checked if problem is None else problem


@pytest.mark.parametrize(
  ("hint", "value", "result"),
  [
    (Steps, 0, 0),
    (Steps, "10", 10),
    (Steps, "1e4", 10_000),
    (Steps, 1e4, 10_000),
    (Steps, "5%", "5%"),
    (Steps | None, None, None),
    (Steps | None, "null", None),
    (PositiveSteps | None, "3 epochs", "3 epochs"),
    (PositiveSteps | None, "3", 3),
    (TrainSteps, "3 epochs", "3 epochs"),
    (EvaluationSteps, -1, -1),
    (tuple[PositiveSteps, ...], [3, "50%", "7"], (3, "50%", 7)),
  ],
)
def test_a_field_in_steps_takes_numbers_as_before_and_texts_as_they_are(hint, value, result):
  found = read(hint, value)
  assert (found, type(found)) == (result, type(result))


@pytest.mark.parametrize(
  ("hint", "value", "problem"),
  [
    (PositiveSteps, 0, "must be at least 1, got 0."),
    (Steps, -1, "must be at least 0, got -1."),
    (EvaluationSteps, -2, "must be at least -1, got -2."),
    (Steps, 1.5, "must be a whole number of steps, or a text such as '90 epochs', got 1.5."),
    (Steps, True, "must be steps, epochs, examples or percent, got true."),
    (Steps | None, [1], "must be steps, epochs, examples or percent or null, got [1]."),
    (TrainSteps, "5%", "must be a number of steps, '90 epochs' or '1.2M examples', got '5%'."),
    (PositiveSteps | None, 0, "must be at least 1, got 0."),
    (tuple[Steps, ...], 3, "must be a list of steps, epochs, examples or percent, got 3."),
  ],
)
def test_what_does_not_fit_a_field_in_steps_is_refused_in_words(hint, value, problem):
  assert read(hint, value) == problem


def test_hints_about_something_else_say_nothing_about_durations():
  assert durations.in_steps(Steps) == durations.InSteps()
  assert [durations.in_steps(hint) for hint in (int, typing.Annotated[int, "x"], tuple[Steps, ...])] == [None] * 3
