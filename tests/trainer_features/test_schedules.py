"""Schedules of anything, by the step or by the history."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_trainer.errors import ConfigError
from official_trainer.optim.config import (
  BatchNormConfig,
  ClipByGlobalNormConfig,
  EmaConfig,
  GradientTransformConfig,
  LinearScheduleConfig,
  MultiFactorScheduleConfig,
  OptimizerConfig,
  ParamGroupConfig,
  PlateauScheduleConfig,
  ScheduleConfig,
)
from official_trainer.optim.variable_paths import variable_paths
from tests import small_tasks, tiny
from tests.optim import grouped

pytestmark = pytest.mark.usefixtures("logical_cpus")


def line(first, last, num_steps=4):
  return ScheduleConfig(type="linear", linear=LinearScheduleConfig(first=first, last=last, num_steps=num_steps))


PLATEAU = ScheduleConfig(
  type="plateau", plateau=PlateauScheduleConfig(metric="validation_loss", factor=0.5, patience=1, min_delta=1e9)
)
"""Cuts at every evaluation but the first: none is better by so much."""


def rates(run):
  """Returns [(step, learning rate)] of a finished run's training reports."""
  return run.state.host.history.series("train", "learning_rate")


def test_t17_the_rate_is_cut_at_the_expected_evaluation_and_nothing_is_traced_again(tmp_path):
  traces = []

  class Traced(tiny.TinyTask):
    def train_step(self, *args, **kwargs):
      traces.append(1)
      return super().train_step(*args, **kwargs)

  run = tiny.build(
    tmp_path, task_class=Traced, train_steps=8, steps_per_loop=1, checkpoint_interval=4, validation_interval=2,
    schedules={"learning_rate_factor": PLATEAU},
  )  # fmt: skip
  run.run()
  base = rates(run)[0][1]
  # Evaluations at 2, 4 and 6: the first sets the best, the others cut what comes after them.
  assert [value / base for _, value in rates(run)] == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25])
  assert len(traces) == 1


@pytest.mark.parametrize("killed_at", [5, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 3, 4))])
def test_t17_killed_and_resumed_the_trace_of_the_rate_is_the_same(tmp_path, killed_at):
  settings = {
    "train_steps": 6, "steps_per_loop": 1, "checkpoint_interval": 3, "validation_interval": 2,
    "schedules": {"learning_rate_factor": PLATEAU},
  }  # fmt: skip
  whole = tiny.build(tmp_path / "whole", **settings)
  whole.run()
  folder = tmp_path / "killed"
  with pytest.raises(tiny.Interrupted):
    tiny.build(folder, session=tiny.interrupted_by(killed_at), **settings).run()
  resumed = tiny.build(folder, **settings)
  resumed.run()
  assert rates(resumed) == rates(whole)
  assert small_tasks.bits(resumed.trainer) == small_tasks.bits(whole.trainer)


def applied_and_formula(name, schedule, formula, **settings):
  """Trains step by step, and returns the reported values of a scalar and those of a formula of the step."""
  trainer = grouped.build(schedules={name: schedule}, **settings)
  reported = [small_tasks.train(trainer, 1)[name] for _ in range(5)]
  return reported, [formula(step) for step in range(5)]


@pytest.mark.parametrize("kind", ["adamw_experimental", "adamw"])
def test_t18_weight_decay_ramps_as_the_formula_says_and_is_applied(kind):
  reported, expected = applied_and_formula(
    "optimizer/weight_decay", line(0.0, 0.8), lambda s: 0.2 * min(s, 4), kind=kind
  )
  assert reported == pytest.approx(expected)
  ramped = grouped.build(kind, rate=0.1, layers=grouped.plain, schedules={"optimizer/weight_decay": line(0.0, 0.8)})
  plain = grouped.build(kind, rate=0.1, layers=grouped.plain, schedules={"optimizer/weight_decay": line(0.0, 0.0)})
  small_tasks.train(ramped, 1)
  small_tasks.train(plain, 1)
  assert small_tasks.bits(ramped) == small_tasks.bits(plain)  # Nothing yet at step 0.
  before = grouped.weights(plain)["head/kernel"]
  small_tasks.train(ramped, 1)
  small_tasks.train(plain, 1)
  decayed = grouped.weights(plain)["head/kernel"] - grouped.weights(ramped)["head/kernel"]
  np.testing.assert_allclose(decayed, 0.1 * 0.2 * before, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "adam", "rmsprop"])
def test_t18_the_optimizers_own_numbers_move(kind):
  name = {"sgd": "momentum", "adam": "beta_1", "rmsprop": "rho"}[kind]
  reported, expected = applied_and_formula(
    f"optimizer/{name}", line(0.9, 0.5), lambda s: 0.9 - 0.1 * min(s, 4), kind=kind
  )
  assert reported == pytest.approx(expected)
  moved = grouped.build(kind, schedules={f"optimizer/{name}": line(0.9, 0.5)})
  fixed = grouped.build(kind, schedules={f"optimizer/{name}": line(0.9, 0.9)})
  small_tasks.train(moved, 3)
  small_tasks.train(fixed, 3)
  assert small_tasks.bits(moved)["model"] != small_tasks.bits(fixed)["model"]


@pytest.mark.parametrize("num_replicas", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_t19_the_rate_of_dropout_follows_its_schedule(num_replicas):
  def layers():
    return [tf_keras.layers.Dropout(0.5, name="drop"), tf_keras.layers.Dense(1, name="head")]

  def losses(schedule):
    trainer = grouped.build(
      "sgd", rate=1e-9, num_replicas=num_replicas, layers=layers, schedules={"model/drop/rate": schedule}
    )
    return [small_tasks.train(trainer, 1)["training_loss"] for _ in range(4)], trainer

  moving, trainer = losses(line(0.0, 0.9, 2))
  without, _ = losses(line(0.0, 0.0))
  assert moving[0] == without[0]  # A rate of 0 drops nothing.
  assert moving[1:] != without[1:]
  assert float(trainer.schedules.values()["model/drop/rate"]) == pytest.approx(0.9)
  with trainer.schedules.as_numbers():
    assert trainer.model.get_layer("drop").rate == pytest.approx(0.9)
    assert isinstance(trainer.model.get_config()["layers"][1]["config"]["rate"], float)
  assert isinstance(trainer.model.get_layer("drop").rate, tf.Variable)
  # It is no weight: checkpoints of the model are those without a schedule.
  assert [path for path, _ in variable_paths(trainer.model)] == ["head/kernel", "head/bias"]


class Temperature(tf_keras.layers.Layer):
  """Divides by a scalar that is not trained."""

  def build(self, shape):
    del shape
    self.scale = self.add_weight(name="scale", shape=[], initializer="ones", trainable=False)

  def call(self, inputs):
    return inputs / self.scale


def test_t19_a_scalar_variable_of_the_model_moves_and_is_not_averaged():
  def build(**settings):
    return grouped.build(
      "sgd",
      layers=lambda: [tf_keras.layers.Dense(1, name="head"), Temperature(name="temperature")],
      ema=EmaConfig(average_decay=0.5),
      schedules={"model/temperature/scale": line(4.0, 2.0, 2)},
      **settings,
    )

  trainer = build()
  assert small_tasks.train(trainer, 2)["model/temperature/scale"] == pytest.approx(3.0)
  assert len(trainer.state.ema.averages) == 2
  # An evaluation computes with what the last update had, in another process as well.
  evaluated = small_tasks.evaluate(trainer)
  other = build()
  other.checkpoint.read(trainer.checkpoint.write("ram://t19/ckpt")).assert_existing_objects_matched()
  other.model.get_layer("temperature").scale.assign(99.0)
  assert small_tasks.evaluate(other) == evaluated


def test_t19_an_unknown_name_is_refused_with_what_there_is():
  with pytest.raises(ConfigError) as error:
    grouped.build(schedules={"model/norn/momentum": line(1, 0), "learning_rate": line(1, 0)})
  text = str(error.value)
  assert "trainer.schedules.model/norn/momentum: names no number that a schedule can move" in text
  assert "'model/norm/momentum'" in text
  assert "trainer.schedules.learning_rate:" in text and "'learning_rate_factor'" in text


def test_groups_clip_norms_and_decay_of_averages_move():
  trainer = grouped.build(
    "sgd",
    param_groups=(ParamGroupConfig(pattern="stem", lr_multiplier=0.3),),
    gradient_transforms=(
      GradientTransformConfig(type="clip_by_global_norm", clip_by_global_norm=ClipByGlobalNormConfig(norm=9.0)),
    ),
    ema=EmaConfig(average_decay=0.9, dynamic_decay=False),
    batch_norm=BatchNormConfig(freeze_statistics=("norm",)),
    log_norms="total",
    schedules={
      "groups/stem/lr_multiplier": line(0.0, 1.0, 2),
      "gradient_transforms/clip_by_global_norm/norm": line(1e-3, 1e-3),
      "ema/average_decay": line(1.0, 1.0),
    },
    rate=1.0,
  )
  before = grouped.weights(trainer)
  logs = small_tasks.train(trainer, 1)
  assert grouped.weights(trainer)["stem/kernel"].tobytes() == before["stem/kernel"].tobytes()
  assert logs["update_norm"] <= 1.01e-3
  small_tasks.train(trainer, 1)
  assert grouped.weights(trainer)["stem/kernel"].tobytes() != before["stem/kernel"].tobytes()
  named = dict(zip([v.name for v in trainer.state.ema.averages], trainer.state.ema.averages, strict=True))
  assert named["head/kernel/average:0"].numpy().tobytes() == before["head/kernel"].tobytes()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])  # One of each API.
def test_d24_the_reported_rate_is_the_applied_one(kind):
  factors = MultiFactorScheduleConfig(factors="linear_warmup * rsqrt_decay", warmup_steps=2)
  schedules = {"learning_rate_factor": ScheduleConfig(type="multi_factor", multi_factor=factors)}
  trainer = grouped.build("sgd" if kind == "sgd" else "adamw", rate=0.5, layers=grouped.plain, schedules=schedules)
  reported = [small_tasks.train(trainer, 1)["learning_rate"] for _ in range(4)]
  assert reported == pytest.approx([0.5 * min(1, s / 2) / max(s, 2) ** 0.5 for s in range(4)])
  if kind == "sgd":
    before = grouped.weights(trainer)
    fixed = grouped.build("sgd", rate=0.5 / 2, layers=grouped.plain)  # At step 4 the factor is 1/2.
    fixed.model.set_weights(trainer.model.get_weights())
    fixed.global_step.assign(4)
    small_tasks.train(fixed, 1)
    small_tasks.train(trainer, 1)
    for path, value in grouped.weights(fixed).items():
      np.testing.assert_allclose(grouped.weights(trainer)[path] - before[path], value - before[path], atol=1e-7)


def test_t67_values_are_computed_on_the_cpu():
  trainer = grouped.build(schedules={"learning_rate_factor": line(1.0, 0.5)})
  assert all("CPU" in value.device for value in trainer.schedules.values().values())


def test_the_weight_decay_of_the_optimizer_is_not_that_of_a_groups_own():
  own = ParamGroupConfig(pattern="stem", optimizer=OptimizerConfig(type="sgd"))

  def stem(decay):
    trainer = grouped.build(
      "adamw_experimental", layers=grouped.plain, param_groups=(own,),
      schedules={"optimizer/weight_decay": line(decay, decay)},
    )  # fmt: skip
    small_tasks.train(trainer, 1)
    return grouped.weights(trainer)

  none, much = stem(0.0), stem(0.5)
  assert none["stem/kernel"].tobytes() == much["stem/kernel"].tobytes()
  assert none["head/kernel"].tobytes() != much["head/kernel"].tobytes()


def test_a_momentum_that_a_legacy_optimizer_has_left_out_cannot_move():
  with pytest.raises(ConfigError, match="optimizer/momentum: names no number that a schedule can move"):
    grouped.build("sgd", legacy=True, schedules={"optimizer/momentum": line(0.9, 0.5)})
