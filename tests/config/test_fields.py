"""Every field has a text, and Model Garden's names and defaults are kept."""

import ast
import dataclasses
import importlib.util
from pathlib import Path

import pytest

from official_trainer.config import hints
from official_trainer.config.experiment import ExperimentConfig, TaskConfig
from official_trainer.config.trainer import BestCheckpointConfig, TrainerConfig
from official_trainer.data.config import DataConfig
from official_trainer.distribute.config import RuntimeConfig
from official_trainer.optim import config as optim


def groups(cls):
  yield cls
  for hint in hints.hints_of(cls).values():
    group = hints.group_in(hint)
    if group is not None:
      yield from groups(group)


ALL = sorted({*groups(ExperimentConfig), BestCheckpointConfig}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ALL)
def test_every_field_says_what_it_means(cls):
  for name, field in hints.fields_of(cls).items():
    assert field.metadata["text"].endswith((".", "?")), f"{cls.__name__}.{name}"
  assert cls.__doc__


@pytest.mark.parametrize("cls", ALL)
def test_every_group_is_frozen_and_keyword_only(cls):
  assert cls.__dataclass_params__.frozen
  assert all(field.kw_only for field in dataclasses.fields(cls))


def test_a_choice_names_its_fields():
  for cls in (optim.OptimizerConfig, optim.LrConfig, optim.WarmupConfig):
    for name in hints.fields_of(cls):
      if name != "type":
        chosen = cls(type=name)
        assert chosen.get() is getattr(chosen, name)
    assert cls().get() is None


def model_garden(path: str) -> dict[str, dict[str, object]]:
  """Returns the literal defaults of the installed dataclasses, read from their text."""
  spec = importlib.util.find_spec("official")
  text = (Path(spec.submodule_search_locations[0]) / path).read_text("utf-8")
  found = {}
  for node in ast.parse(text).body:
    if isinstance(node, ast.ClassDef):
      fields = dict(found.get(node.bases[0].id, {}) if isinstance(node.bases[0], ast.Name) else {})
      for item in node.body:
        if isinstance(item, ast.AnnAssign) and item.value is not None:
          fields[item.target.id] = _literal(item.value)
      found[node.name] = fields
  return found


def _literal(node):
  """A default as a value; a product of numbers too; Ellipsis for what is made by a factory."""
  try:
    return ast.literal_eval(node)
  except ValueError:
    if isinstance(node, ast.BinOp):
      return node.left.value * node.right.value
    return ...


CORE = "core/config_definitions.py"
OPTIMIZERS = "modeling/optimization/configs/optimizer_config.py"
SCHEDULES = "modeling/optimization/configs/learning_rate_config.py"
CHOICES = "modeling/optimization/configs/optimization_config.py"

# What is different on purpose.
DIFFERENT = {
  ("TrainerConfig", "best_checkpoint_metric_comp"): None,
  ("EmaConfig", "trainable_weights_only"): False,
}


@pytest.mark.parametrize(
  ("path", "theirs", "ours"),
  [
    (CORE, "DataConfig", DataConfig),
    (CORE, "RuntimeConfig", RuntimeConfig),
    (CORE, "TrainerConfig", TrainerConfig),
    (CORE, "TaskConfig", TaskConfig),
    (CHOICES, "OptimizerConfig", optim.OptimizerConfig),
    (CHOICES, "LrConfig", optim.LrConfig),
    (CHOICES, "WarmupConfig", optim.WarmupConfig),
    (CHOICES, "OptimizationConfig", optim.OptimizationConfig),
    (OPTIMIZERS, "SGDConfig", optim.SgdConfig),
    (OPTIMIZERS, "SGDExperimentalConfig", optim.SgdExperimentalConfig),
    (OPTIMIZERS, "RMSPropConfig", optim.RmsPropConfig),
    (OPTIMIZERS, "AdagradConfig", optim.AdagradConfig),
    (OPTIMIZERS, "AdamConfig", optim.AdamConfig),
    (OPTIMIZERS, "AdamExperimentalConfig", optim.AdamExperimentalConfig),
    (OPTIMIZERS, "AdamWeightDecayConfig", optim.AdamWConfig),
    (OPTIMIZERS, "AdamWeightDecayExperimentalConfig", optim.AdamWExperimentalConfig),
    (OPTIMIZERS, "LAMBConfig", optim.LambConfig),
    (OPTIMIZERS, "LARSConfig", optim.LarsConfig),
    (OPTIMIZERS, "SLIDEConfig", optim.SlideConfig),
    (OPTIMIZERS, "AdafactorConfig", optim.AdafactorConfig),
    (OPTIMIZERS, "AdafactorKerasConfig", optim.AdafactorKerasConfig),
    (OPTIMIZERS, "EMAConfig", optim.EmaConfig),
    (SCHEDULES, "ConstantLrConfig", optim.ConstantLrConfig),
    (SCHEDULES, "StepwiseLrConfig", optim.StepwiseLrConfig),
    (SCHEDULES, "ExponentialLrConfig", optim.ExponentialLrConfig),
    (SCHEDULES, "PolynomialLrConfig", optim.PolynomialLrConfig),
    (SCHEDULES, "CosineLrConfig", optim.CosineLrConfig),
    (SCHEDULES, "DirectPowerLrConfig", optim.DirectPowerLrConfig),
    (SCHEDULES, "PowerAndLinearDecayLrConfig", optim.PowerAndLinearDecayLrConfig),
    (SCHEDULES, "PowerDecayWithOffsetLrConfig", optim.PowerDecayWithOffsetLrConfig),
    (SCHEDULES, "StepCosineLrConfig", optim.StepCosineLrConfig),
    (SCHEDULES, "LinearWarmupConfig", optim.LinearWarmupConfig),
    (SCHEDULES, "PolynomialWarmupConfig", optim.PolynomialWarmupConfig),
  ],
)
def test_model_gardens_names_and_defaults_are_kept(path, theirs, ours):
  expected = model_garden(path)[theirs]
  if ours in (optim.AdafactorConfig, optim.AdamConfig):
    assert expected
  config = ours()
  for name, value in expected.items():
    found = getattr(config, name)
    if (ours.__name__, name) in DIFFERENT:
      assert found == DIFFERENT[ours.__name__, name] != value
    elif value is not ...:
      assert found == value, f"{ours.__name__}.{name}"
