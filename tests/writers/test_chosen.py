"""Writers that a config asks for by name."""

import sys
import types

import pytest

from official_trainer.config.named import Named
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import ConfigError
from official_trainer.writers import chosen
from official_trainer.writers.base import WriterGroup
from official_trainer.writers.chosen import chosen_writers, missing_writers, register_writer
from official_trainer.writers.csv_table import CsvWriter
from official_trainer.writers.wandb_run import WandbWriter


@pytest.fixture(autouse=True)
def registry(monkeypatch):
  monkeypatch.setattr(chosen, "_NAMED", Named("writer", chosen._BUILT_IN))


@pytest.fixture
def wandb(monkeypatch):
  module = types.ModuleType("wandb")
  monkeypatch.setitem(sys.modules, "wandb", module)
  return module


def said(**options):
  return [f"{problem.path}: {problem.message}" for problem in missing_writers(TrainerConfig(**options))]


def test_nothing_is_asked_for_by_default(tmp_path):
  assert missing_writers(TrainerConfig()) == []
  assert chosen_writers(TrainerConfig(), str(tmp_path)) == []


def test_built_in_writers_are_made_in_the_order_of_the_config(tmp_path, wandb):
  options = TrainerConfig(writers=("wandb", "csv"))
  assert missing_writers(options) == []
  assert [type(writer) for writer in chosen_writers(options, str(tmp_path))] == [WandbWriter, CsvWriter]


def test_wandb_without_its_package_is_a_problem_with_the_line_that_installs_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  [problem] = said(writers=("wandb", "csv"))
  assert problem.startswith("trainer.writers: names 'wandb', whose package cannot be imported")
  assert problem.endswith("Install it: pip install wandb")


def test_wandb_is_not_imported_unless_it_is_asked_for(monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  assert said(writers=("csv",)) == []


def test_a_registered_writer_gets_its_run_and_its_arguments(tmp_path):
  calls = []

  @register_writer("letters")
  def letters(context, *, to, copies=1):
    calls.append((context.model_dir, context.options.train_steps, to, copies))
    return WriterGroup()

  options = TrainerConfig(writers=("letters",), writer_arguments={"letters": {"to": "ada"}}, train_steps=3)
  assert missing_writers(options) == []
  assert len(chosen_writers(options, str(tmp_path))) == 1
  assert calls == [(str(tmp_path), 3, "ada", 1)]


def test_a_name_that_nobody_registered_is_named_with_the_nearest():
  register_writer("letters")(lambda context: WriterGroup())
  [problem] = said(writers=("leters",))
  assert problem.startswith("trainer.writers: there is no writer 'leters'. Did you mean 'letters'?")
  assert "Known: csv, letters, wandb." in problem


def test_built_in_writers_take_no_arguments_and_keep_their_names():
  assert said(writers=("csv",), writer_arguments={"csv": {"sep": ";"}}) == [
    "trainer.writer_arguments.csv: has no effect: the writer is a built-in one."
  ]
  with pytest.raises(ConfigError, match="writer 'csv': is registered twice"):
    register_writer("csv")
    register_writer("csv")(lambda context: WriterGroup())
