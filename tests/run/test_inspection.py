import pytest
import tensorflow as tf

from official_trainer.distribute.scratch import written_folder
from official_trainer.inspect.config import ProfileConfig
from official_trainer.optim.group_columns import GroupColumns
from official_trainer.run.inspection import Inspection
from official_trainer.timing.phases import Phases
from official_trainer.writers.base import WriterGroup
from tests import small_tasks, tiny


class Texts(WriterGroup):
  """Keeps what was written."""

  def __init__(self):
    super().__init__()
    self.texts, self.values = [], []

  def text(self, step, tag, markdown):
    self.texts.append((step, tag, markdown.splitlines()[0]))

  def timings(self, step, mode, values):
    self.values.append((step, mode, values))


class Told:
  """An inspection, and what it tells."""

  def __init__(self, trainer, folder, *, columns=None, **options):
    self.said, self.warned, self.writer = [], [], Texts()
    self.inspection = Inspection(
      trainer,
      small_tasks.experiment(**options).trainer,
      str(folder),
      writer=self.writer,
      phases=Phases(),
      note=self.said.append,
      warn=self.warned.append,
      group_columns=lambda: columns or {},
    )

  def begin(self, is_fresh):
    self.inspection.begin(is_fresh=is_fresh)
    return self


@pytest.fixture(scope="module")
def trainer():
  return small_tasks.build_trainer()


SUMMARY = "4 parameters in 2 variables: 4 trainable, 0 not; 16 B"


def test_a_run_that_begins_lists_its_parameters_in_a_file_in_a_line_and_in_tensorboard(trainer, tmp_path):
  told = Told(trainer, tmp_path).begin(True)
  assert told.said == [f"model: {SUMMARY}; listed in parameters.txt"]
  assert told.writer.texts == [(0, "parameter_table", SUMMARY)]
  assert (tmp_path / "parameters.txt").read_text().endswith(f"\n{SUMMARY}\n")


def test_a_run_that_goes_on_says_nothing_of_them_unless_they_are_others(trainer, tmp_path):
  Told(trainer, tmp_path).begin(True)
  told = Told(trainer, tmp_path).begin(False)
  assert told.said == [] and told.writer.texts == []
  path = next(row.path for row in _rows(trainer) if row.path.endswith("bias"))
  told = Told(trainer, tmp_path, columns={path: GroupColumns(group="bias", frozen=True)}).begin(False)
  assert told.said == [
    "model: 4 parameters in 2 variables: 3 trainable, 1 not; 16 B; listed in parameters.txt",
  ]
  assert "frozen" in (tmp_path / "parameters.txt").read_text()


def test_a_list_that_is_missing_is_written_again(trainer, tmp_path):
  Told(trainer, tmp_path).begin(False)
  assert (tmp_path / "parameters.txt").exists()


def test_a_run_without_a_folder_names_no_file_and_is_asked_by_none(trainer):
  with written_folder("", trainer.peers) as folder:
    told = Told(trainer, folder).begin(True)
    assert told.said == [f"model: {SUMMARY}"]
    with tf.io.gfile.GFile(f"{folder}/PROFILE", "w") as file:
      file.write("")
    assert told.inspection.stops(0) == ()


def test_only_the_chief_tells(trainer, tmp_path, monkeypatch):
  monkeypatch.setattr(type(trainer.peers), "is_chief", property(lambda peers: False))
  told = Told(trainer, tmp_path).begin(True)
  assert told.said == [] and told.writer.texts == []
  assert list(tmp_path.iterdir()) == []


def test_loops_are_cut_for_what_is_looked_at_and_not_otherwise(trainer, tmp_path):
  assert Told(trainer, tmp_path).inspection.stops(0) == ()
  assert Told(trainer, tmp_path, dump_graphs="text").inspection.stops(0) == (1,)
  window = ProfileConfig(steps=(3, 5))
  assert Told(trainer, tmp_path, profile=window).inspection.stops(0) == (3, 5)


def test_a_file_asks_for_a_profile_of_the_next_steps_unless_that_is_off(trainer, tmp_path):
  (tmp_path / "PROFILE").touch()
  off = Told(trainer, tmp_path, profile=ProfileConfig(on_demand_steps=0)).inspection
  assert off.stops(4) == () and (tmp_path / "PROFILE").exists()
  inspection = Told(trainer, tmp_path, profile=ProfileConfig(on_demand_steps=3)).inspection
  assert inspection.stops(4) == (4, 7) and not (tmp_path / "PROFILE").exists()


def test_without_being_asked_for_nothing_is_done_after_a_loop(trainer, tmp_path):
  assert Told(trainer, tmp_path).inspection.after_loop == ()


class Strange(tiny.TinyTask):
  """Cannot be asked for outputs apart from its own steps."""

  def inference_step(self, inputs, model):
    raise ValueError("only inside of validation_step")


def test_a_task_that_cannot_be_traced_in_this_way_is_warned_about_and_trained(tmp_path):
  built = tiny.build(tmp_path, mode="train", task_class=Strange, inspect_model=True, train_steps=4)
  built.run()
  assert built.state.step == 4
  assert "forward pass and step could not be looked at" in built.said
  assert "only inside of validation_step" in built.said


def _rows(trainer):
  from official_trainer.inspect.parameters import parameter_table

  return parameter_table(trainer.model).rows
