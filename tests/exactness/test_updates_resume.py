"""A killed run with everything that stands between gradients and weights ends with the bits of the whole one."""

import pytest
import tensorflow as tf

from official_trainer.optim.config import (
  ClipByGlobalNormConfig,
  EmaConfig,
  GradientTransformConfig,
  LinearScheduleConfig,
  OptimizerConfig,
  ParamGroupConfig,
  PlateauScheduleConfig,
  ScheduleConfig,
  SgdConfig,
)
from tests import small_tasks, tiny

pytestmark = pytest.mark.usefixtures("logical_cpus")

SETTINGS = {
  **tiny.BEST,
  "train_steps": 9,
  "steps_per_loop": 4,
  "checkpoint_interval": 3,
  "validation_interval": 3,
  "ema": EmaConfig(average_decay=0.9),
  "task": {"hidden": (4,), "dropout": 0.5, "batchnorm": True},
  "param_groups": (
    ParamGroupConfig(pattern="gamma", frozen=True),
    ParamGroupConfig(pattern="beta", optimizer=OptimizerConfig(type="sgd", sgd=SgdConfig(momentum=0.5))),
    ParamGroupConfig(pattern="bias", name="biases", lr_multiplier=0.5, weight_decay=0.1),
  ),
  "gradient_transforms": (
    GradientTransformConfig(type="noise"),
    GradientTransformConfig(type="clip_by_global_norm", clip_by_global_norm=ClipByGlobalNormConfig(norm=0.5)),
  ),
  "gradient_accumulation_steps": 2,
  "log_norms": "groups",
  "skip_nonfinite_updates": True,
  "schedules": {
    "learning_rate_factor": ScheduleConfig(
      type="plateau", plateau=PlateauScheduleConfig(metric="accuracy", patience=1, min_delta=2.0, factor=0.5)
    ),
    "groups/biases/lr_multiplier": ScheduleConfig(
      type="linear", linear=LinearScheduleConfig(first=0.1, last=1.0, num_steps=6)
    ),
    "ema/average_decay": ScheduleConfig(type="linear", linear=LinearScheduleConfig(first=0.5, last=0.9, num_steps=5)),
  },
}


def build(folder, num_replicas, **session):
  strategy = small_tasks.strategy_of(num_replicas) if num_replicas > 1 else None
  return tiny.build(folder, strategy=strategy, session=session or None, **SETTINGS)


@pytest.mark.parametrize(
  ("num_replicas", "killed_at"),
  [(1, 4), *(pytest.param(n, at, marks=pytest.mark.slow) for n, at in ((1, 3), (1, 6), (2, 4), (2, 8)))],
)
def test_a_killed_run_with_all_that_changes_updates_ends_with_the_same_bits(tmp_path, num_replicas, killed_at):
  whole = build(tmp_path / "whole", num_replicas)
  whole.run()
  with pytest.raises(tiny.Interrupted):
    build(tmp_path / "killed", num_replicas, **tiny.interrupted_by(killed_at)).run()
  resumed = build(tmp_path / "killed", num_replicas)
  resumed.run()
  assert small_tasks.bits(resumed.trainer) == small_tasks.bits(whole.trainer)
  slots = [[value.numpy().tobytes() for value in run.state.slots()] for run in (resumed, whole)]
  assert slots[0] == slots[1] and len(slots[0]) > len(small_tasks.bits(whole.trainer)["slots"]) // num_replicas
  assert resumed.state.host.history.rows == whole.state.host.history.rows
  assert resumed.state.host.best == whole.state.host.best
  last = tf.train.latest_checkpoint(str(tmp_path / "whole"))
  tiny.assert_same_contents(last, last.replace("whole", "killed"))
