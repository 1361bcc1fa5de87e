import math
import random

import pytest

from official_trainer.writers import formats


@pytest.mark.parametrize(
  "number, text",
  [
    (0.0, "0"),
    (0.03123, "0.0312"),
    (0.981, "0.9810"),
    (0.00312, "0.00312"),
    (2e-3, "0.00200"),
    (3.1234e-5, "3.12e-05"),
    (-3.1234e-5, "-3.1e-05"),
    (2.302585, "2.3026"),
    (12.3456, "12.346"),
    (123.456, "123.46"),
    (1234.56, "1234.6"),
    (12345.6, "12346"),
    (123456.0, "1.23e+05"),
    (1e300, "1.0e+300"),
    (-1e-300, "-1e-300"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
  ],
)
def test_a_value_shows_three_digits_or_more(number, text):
  assert formats.value(number) == text


def test_no_value_is_wider_than_its_column():
  draw = random.Random(0)
  for _ in range(20_000):
    number = draw.choice([-1, 1]) * 10 ** draw.uniform(-320, 308)
    assert len(formats.value(number)) <= formats.VALUE_WIDTH


@pytest.mark.parametrize(
  "speed, text",
  [(812.4, "812 steps/s"), (99.96, "100 steps/s"), (48.12, "48.1 steps/s"), (1.5, "1.50 steps/s"),
   (0.08, "12.5 s/step"), (0.0, "0.00 steps/s"), (12345.6, "12346 steps/s")],
)  # fmt: skip
def test_a_speed_is_read_in_the_larger_unit(speed, text):
  assert formats.speed(speed) == text


@pytest.mark.parametrize(
  "steps, speed, text",
  [
    (800, 70.0, "0:00:12"),
    (0, 70.0, "0:00:00"),
    (-5, 70.0, "0:00:00"),
    (86_399, 1.0, "23:59:59"),
    (86_400 * 29 + 11_525, 1.0, "29d  3:12:05"),
    (10, None, "-:--:--"),
    (10, 0.0, "-:--:--"),
    (10, math.nan, "-:--:--"),
    (10, math.inf, "-:--:--"),
  ],
)
def test_the_time_left_is_rounded_up_and_unknown_without_a_speed(steps, speed, text):
  assert formats.remaining(steps, speed) == text


def test_a_position_is_as_wide_at_every_step():
  assert formats.position(5, 1000) == "   5/1000"
  assert formats.position(1000, 1000) == "1000/1000"
  assert formats.position(5, None) == "      5"


def test_losses_of_both_modes_share_a_name_and_nothing_else_does():
  names = ["training_loss", "validation_loss", "loss", "validation_set_size", "training_box_loss"]
  shared = [formats.shared_name(name) for name in names]
  assert shared == ["loss", "loss", "loss", "validation_set_size", "training_box_loss"]


def test_losses_come_first_and_learning_rates_last():
  names = ["learning_rate", "b", "a", "box_loss", "learning_rate/head", "b", "training_loss"]
  ordered = ["box_loss", "training_loss", "b", "a", "learning_rate", "learning_rate/head"]
  assert formats.in_order(names) == ordered
