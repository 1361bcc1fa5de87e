import math

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.errors import ConfigError
from official_trainer.history import History
from official_trainer.optim.config import (
  CosineScheduleConfig,
  CustomScheduleConfig,
  ExponentialScheduleConfig,
  LinearScheduleConfig,
  MultiFactorScheduleConfig,
  PolynomialScheduleConfig,
  ScheduleConfig,
  StepwiseScheduleConfig,
)
from official_trainer.optim.schedules import Schedule, build_schedule, register_schedule

pytestmark = pytest.mark.usefixtures("logical_cpus")


def values(kind, config, steps, history=None):
  schedule = build_schedule(ScheduleConfig(type=kind, **{kind: config}), "trainer.schedules.x")
  coefficients = tf.constant(list(schedule.coefficients(history or History())), tf.float32)
  return [float(schedule.value(tf.constant(float(step)), coefficients)) for step in steps]


def test_a_line_goes_from_the_first_value_to_the_last():
  line = LinearScheduleConfig(first=1.0, last=0.0, begin_step=10, num_steps=10)
  assert values("linear", line, [0, 10, 15, 20, 99]) == pytest.approx([1, 1, 0.5, 0, 0])
  assert values("linear", LinearScheduleConfig(first=0.0, last=0.3, num_steps=3), [1]) == pytest.approx([0.1])


def test_powers_and_cosines():
  power = PolynomialScheduleConfig(first=4.0, last=0.0, num_steps=4, power=2.0)
  assert values("polynomial", power, [0, 2, 4]) == pytest.approx([4, 1, 0])
  cosine = CosineScheduleConfig(first=2.0, last=1.0, num_steps=4)
  assert values("cosine", cosine, [0, 2, 4, 9]) == pytest.approx([2, 1.5, 1, 1])


def test_exponentials_and_steps():
  smooth = ExponentialScheduleConfig(first=1.0, factor=0.25, num_steps=2, begin_step=2)
  assert values("exponential", smooth, [0, 2, 3, 4]) == pytest.approx([1, 1, 0.5, 0.25])
  jumps = ExponentialScheduleConfig(first=1.0, factor=0.25, num_steps=2, staircase=True)
  assert values("exponential", jumps, [0, 1, 2, 3]) == pytest.approx([1, 1, 0.25, 0.25])
  pieces = StepwiseScheduleConfig(boundaries=(3, 5), values=(1.0, 2.0, 3.0))
  assert values("stepwise", pieces, [0, 2, 3, 4, 5, 9]) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
  ("factors", "expected"),
  [
    ("constant * linear_warmup * rsqrt_decay", lambda s: 3.0 * min(1, s / 4) / math.sqrt(max(s, 4))),
    ("constant*decay_every", lambda s: 3.0 * 0.5 ** (s // 5)),
    ("linear_warmup * cosine_decay", lambda s: min(1, s / 4) * 0.5 * (1 + math.cos(math.pi * (max(0, s - 4) / 6 % 1)))),
    ("rsqrt_normalized_decay", lambda s: 2.0 / math.sqrt(max(s, 4))),
  ],
)
def test_factors_are_multiplied(factors, expected):
  config = MultiFactorScheduleConfig(
    factors=factors, constant=3.0, warmup_steps=4, decay_factor=0.5, steps_per_decay=5, steps_per_cycle=6
  )
  steps = range(13)
  np.testing.assert_allclose(values("multi_factor", config, steps), [expected(s) for s in steps], rtol=1e-5, atol=1e-6)


def history_of(*losses):
  history = History()
  for index, loss in enumerate(losses):
    history.append(index + 1, "validation", {"loss": loss})
  return history


def test_a_function_of_the_history_is_registered_by_name():
  @register_schedule("tests/last")
  def last(history, *, scale):
    series = history.series("validation", "loss")
    return scale * series[-1][1] if series else 0.0

  custom = CustomScheduleConfig(name="tests/last", arguments={"scale": 2.0})
  assert values("custom", custom, [0]) == [0.0]
  assert values("custom", custom, [0], history_of(3.0, 4.0)) == [8.0]


def test_a_schedule_of_history_and_step_is_a_class():
  @register_schedule("tests/since")
  class Since(Schedule):
    """Grows with the steps since the last evaluation."""

    def coefficients(self, history):
      series = history.series("validation", "loss")
      return (series[-1][0] if series else 0,)

    def value(self, step, coefficients):
      return step - coefficients[0]

  custom = CustomScheduleConfig(name="tests/since")
  assert values("custom", custom, [7], history_of(3.0, 4.0)) == [5.0]
  with pytest.raises(ConfigError, match=r"x.custom.arguments: do not fit 'tests/since'"):
    values("custom", CustomScheduleConfig(name="tests/since", arguments={"speed": 1}), [0])


def test_a_schedule_that_is_not_registered_is_refused_with_the_nearest():
  register_schedule("tests/first")(lambda history: 1.0)
  with pytest.raises(ConfigError, match=r"custom.name: there is no schedule 'tests/firts'. Did you mean 'tests/first'"):
    values("custom", CustomScheduleConfig(name="tests/firts"), [0])
