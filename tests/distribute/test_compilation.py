import pytest
import tensorflow as tf

from official_trainer.distribute.compilation import compiled_step, run_options
from official_trainer.distribute.config import RuntimeConfig
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def step(value):
  return value + 1.0


def test_a_step_is_compiled_only_when_asked_for():
  strategy = small_tasks.strategy_of(1)
  assert compiled_step(step, RuntimeConfig(), strategy) is step
  compiled = compiled_step(step, RuntimeConfig(enable_xla=True), strategy)
  assert compiled(tf.constant(1.0)) == 2.0
  assert "fusion" in (hlo := compiled.experimental_get_compiler_ir(tf.constant(1.0))("optimized_hlo")) or "add" in hlo


def test_steps_of_cpu_replicas_are_left_as_they_are_with_a_warning(caplog):
  assert compiled_step(step, RuntimeConfig(enable_xla=True), small_tasks.strategy_of(2)) is step
  assert "runtime.enable_xla has no effect" in caplog.text


def test_options_of_xla_are_passed_on():
  assert run_options(RuntimeConfig()).experimental_xla_options.enable_xla_dynamic_padder is True
  chosen = run_options(RuntimeConfig(tpu_enable_xla_dynamic_padder=False))
  assert chosen.experimental_xla_options.enable_xla_dynamic_padder is False
