import copy
import itertools
import json
import math
import os

import pytest
import tensorflow as tf

from official_trainer.checkpoint import best_folder
from official_trainer.checkpoint.best import BestCheckpoint
from official_trainer.checkpoint.best_folder import best_checkpoint_in, read_record, step_of

NOT_FINITE = (math.nan, math.inf, -math.inf)


class Model(tf.Module):
  """One weight, whose value is the step."""

  def __init__(self):
    super().__init__()
    self.weight = tf.Variable(0.0)


class Run:
  """Evaluates with given scores at steps 1, 2, ... and exports by one rule."""

  def __init__(self, folder, metric="accuracy", comparison=None, records=None, committed_step=None, **rule):
    self.folder = str(folder)
    self.model = Model()
    self.checkpoint = tf.train.Checkpoint(model=self.model)
    self.rule = BestCheckpoint(self.folder, metric, comparison, records, committed_step=committed_step, **rule)
    self.metric = metric

  def score(self, step, value, weight=None):
    self.model.weight.assign(float(step if weight is None else weight))
    return self.rule.maybe_export_checkpoint(self.checkpoint, {self.metric: value}, step)

  @property
  def exported(self):
    """The value of the weights on disk, read as a user reads them."""
    model = Model()
    status = tf.train.Checkpoint(model=model).read(best_checkpoint_in(self.folder))
    status.assert_consumed()
    return float(model.weight)

  @property
  def record(self):
    with tf.io.gfile.GFile(f"{self.folder}/info.json") as file:
      return json.loads(file.read())

  def assert_agrees(self, step, value):
    assert self.exported == step
    assert self.record[self.metric] == value
    assert self.record["best_ckpt_global_step"] == step == step_of(self.folder)
    assert self.rule.best_value == value


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
  name = tmp_path.name
  return str(tmp_path / "best_ckpt") if request.param == "local" else f"ram://best-{name}/best_ckpt"


def test_the_direction_follows_from_the_name_unless_it_is_given(tmp_path):
  assert BestCheckpoint(str(tmp_path), "accuracy").comparison == "higher"
  assert BestCheckpoint(str(tmp_path), "validation_loss").comparison == "lower"
  assert BestCheckpoint(str(tmp_path), "val|box_loss").comparison == "lower"
  assert BestCheckpoint(str(tmp_path), "accuracy", "lower").comparison == "lower"
  with pytest.raises(ValueError, match="must be 'higher' or 'lower', got 'max'"):
    BestCheckpoint(str(tmp_path), "accuracy", "max")


# ---- The export -------------------------------------------------------------------------------------


def test_the_better_one_replaces_the_exported_weights_and_nothing_else_stays(folder):
  run = Run(folder)
  assert [run.score(step, value) for step, value in enumerate([0.5, 0.4, 0.5, 0.9, 0.6], 1)] == [
    True,
    False,
    False,  # The first of equals stays.
    True,
    False,
  ]
  run.assert_agrees(4, 0.9)
  assert sorted(tf.io.gfile.listdir(folder)) == [
    "best_ckpt-4.data-00000-of-00001",
    "best_ckpt-4.index",
    "checkpoint",
    "info.json",
  ]


def test_for_a_loss_the_lower_one_is_better(folder):
  run = Run(folder, "validation_loss")
  for step, value in enumerate([0.5, 0.2, 0.4], 1):
    run.score(step, value)
  run.assert_agrees(2, 0.2)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_first_value_that_is_not_finite_exports_nothing_and_blocks_nothing(folder, value):
  run = Run(folder)
  assert not run.score(1, value)
  assert run.rule.best_ckpt_logs is None
  assert best_checkpoint_in(folder) is None
  assert run.score(2, 0.1)
  assert not run.score(3, value)
  run.assert_agrees(2, 0.1)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_weights_that_are_not_finite_are_not_exported_whatever_the_metric_says(tmp_path, value):
  run = Run(tmp_path)
  run.score(1, 0.5)
  run.model.weight.assign(value)
  assert not run.rule.maybe_export_checkpoint(run.checkpoint, {"accuracy": 0.9}, 2)
  run.assert_agrees(1, 0.5)


def test_a_nested_metric_is_watched_and_recorded(folder):
  run = Run(folder, "b|accuracy")
  logs = {"a": {"accuracy": 0.1}, "b": {"accuracy": 0.8, "text": "left out"}, "all": 0.5}
  assert run.rule.maybe_export_checkpoint(run.checkpoint, logs, 3)
  assert run.rule.best_value == 0.8
  assert run.record == {
    "a": {"accuracy": 0.1},
    "b": {"accuracy": 0.8},
    "all": 0.5,
    "best_ckpt_file": "best_ckpt-3",
    "best_ckpt_global_step": 3,
  }
  assert Run(folder, "b|accuracy").rule.best_value == 0.8


def test_a_metric_that_is_not_reported_is_an_error_with_the_reported_names(tmp_path):
  run = Run(tmp_path, "acuracy")
  with pytest.raises(KeyError, match=r"'acuracy'.*Reported: a\|accuracy, loss"):
    run.rule.maybe_export_checkpoint(run.checkpoint, {"a": {"accuracy": 1.0}, "loss": 1.0}, 1)


@pytest.mark.parametrize("first", [0.9, math.nan])
def test_a_restart_keeps_the_best(folder, first):
  Run(folder).score(1, first)
  again = Run(folder)
  again.score(2, 0.5)
  again.assert_agrees(*((1, 0.9) if first == 0.9 else (2, 0.5)))


def test_the_records_of_a_state_are_used_and_filled(tmp_path):
  records = {}
  Run(tmp_path / "best_ckpt", records=records).score(1, 0.9)
  assert records["best_ckpt"]["accuracy"] == 0.9
  assert not Run(tmp_path / "best_ckpt", records=records).score(2, 0.5)


def restarted(folder, records):
  """A run that goes on from a state whose records are these."""
  return Run(folder, records=copy.deepcopy(records), committed_step=lambda: 0)


@pytest.fixture
def ahead(tmp_path):
  """A folder whose best is that of step 8, and the records of a state that knows only that of step 4."""
  records = {}
  run = Run(tmp_path / "best_ckpt", records=records, committed_step=lambda: 0)
  run.score(4, 0.5)
  known = copy.deepcopy(records)
  run.score(8, 0.9)
  return tmp_path / "best_ckpt", known


def test_a_better_record_ahead_of_the_state_stays_until_its_step_is_repeated(ahead):
  folder, known = ahead
  run = restarted(folder, known)
  assert run.score(6, 0.7)
  assert (run.rule.best_value, run.record["accuracy"], run.exported) == (0.7, 0.9, 8.0)
  assert run.score(8, 0.9)
  run.rule.finish()
  run.assert_agrees(8, 0.9)
  assert sorted(path.name for path in folder.glob("*.index")) == ["best_ckpt-8.index"]


def test_a_record_ahead_that_is_not_repeated_gives_way_to_the_best_of_the_state(ahead):
  folder, known = ahead
  run = restarted(folder, known)
  assert run.score(6, 0.7)
  assert not run.score(8, 0.6)  # Another course than before: batches were left out.
  run.assert_agrees(6, 0.7)
  run.rule.finish()
  run.assert_agrees(6, 0.7)


def test_a_record_ahead_gives_way_to_a_best_from_before_the_restart_too(ahead):
  folder, known = ahead
  run = restarted(folder, known)
  assert not run.score(8, 0.3)
  run.assert_agrees(4, 0.5)


# Weights of the same step were overwritten under the record of the former ones: with a lower learning rate, or after
# a change of the config, they score differently, and a kill before the record left the two apart.
def test_a_kill_before_the_record_leaves_the_weights_that_it_names(ahead, monkeypatch):
  folder, known = ahead
  run = restarted(folder, known)
  with monkeypatch.context() as patch:
    patch.setattr(best_folder, "write_text", kill)
    with pytest.raises(Killed):
      run.score(8, 0.7, weight=-1.0)
  assert (run.record["accuracy"], run.exported) == (0.9, 8.0)
  run = restarted(folder, known)
  run.score(8, 0.7, weight=-1.0)
  run.rule.finish()
  assert (run.record["accuracy"], run.exported) == (0.7, -1.0)
  assert len(list(folder.glob("*.index"))) == 1


def test_a_worse_record_ahead_of_the_state_is_replaced_at_once(tmp_path):
  folder = tmp_path / "best_ckpt"
  Run(folder).score(8, 0.4)
  run = restarted(folder, {})
  assert not run.score(2, math.nan)
  assert run.score(4, 0.7)
  run.assert_agrees(4, 0.7)


def test_the_former_best_stays_until_a_checkpoint_knows_the_new_one(tmp_path):
  committed = [2]
  run = Run(tmp_path, records={}, committed_step=lambda: committed[0])

  def files():
    return sorted(path.name for path in tmp_path.glob("*.index"))

  run.score(2, 0.5)
  run.score(4, 0.6)
  committed[0] = 4  # Saved before the evaluation at step 4.
  run.score(5, 0.1)
  assert files() == ["best_ckpt-2.index", "best_ckpt-4.index"]
  committed[0] = 6
  run.score(6, 0.1)
  assert files() == ["best_ckpt-4.index"]
  run.score(8, 0.7)
  run.rule.finish()
  assert files() == ["best_ckpt-8.index"]


# ---- Several of the best ----------------------------------------------------------------------------


def weights_of(folder, record):
  """The value of the weights that a record names."""
  model = Model()
  tf.train.Checkpoint(model=model).read(f"{folder}/{record['best_ckpt_file']}").assert_consumed()
  return float(model.weight)


def test_the_best_few_stay_and_the_record_ranks_them(folder):
  run = Run(folder, top_k=2)
  assert [run.score(step, value) for step, value in enumerate([0.5, 0.9, 0.1, 0.7], 1)] == [True, True, False, True]
  run.assert_agrees(2, 0.9)
  ranked = run.record["best_ckpt_ranking"]
  assert [(record["accuracy"], record["best_ckpt_global_step"]) for record in ranked] == [(0.9, 2), (0.7, 4)]
  assert [weights_of(folder, record) for record in ranked] == [2.0, 4.0]
  assert sorted(name for name in tf.io.gfile.listdir(folder) if name.endswith(".index")) == [
    "best_ckpt-2.index",
    "best_ckpt-4.index",
  ]
  assert [step_of(folder, f"best_ckpt-{step}") for step in (2, 4)] == [2, 4]
  state = tf.train.get_checkpoint_state(folder)
  assert [os.path.basename(path) for path in state.all_model_checkpoint_paths] == ["best_ckpt-4", "best_ckpt-2"]


def test_a_folder_goes_on_with_fewer_or_more_places(folder):
  Run(folder).score(1, 0.5)
  run = Run(folder, top_k=3)
  for step, value in ((2, 0.9), (3, 0.7)):
    run.score(step, value)
  assert [record["best_ckpt_global_step"] for record in run.rule.ranked] == [2, 3, 1]
  run = Run(folder, top_k=1)
  assert not run.score(4, 0.1)
  assert "best_ckpt_ranking" not in run.record
  run.assert_agrees(2, 0.9)
  assert [name for name in tf.io.gfile.listdir(folder) if name.endswith(".index")] == ["best_ckpt-2.index"]


def test_a_gain_and_ties_are_as_the_rule_says(tmp_path):
  values = (0.25, 0.5, 0.5, 0.625)
  for name, settings, step in (("first", {}, 4), ("last", {"ties": "last", "min_gain": 0.0}, 4),
                               ("gain", {"min_gain": 0.375}, 4), ("none", {"min_gain": 0.5}, 1)):  # fmt: skip
    run = Run(tmp_path / name, **settings)
    for number, value in enumerate(values, 1):
      run.score(number, value)
    run.assert_agrees(step, values[step - 1])
  run = Run(tmp_path / "equal", ties="last")
  assert [run.score(step, 0.5) for step in (1, 2)] == [True, True]
  run.assert_agrees(2, 0.5)
  assert not run.score(2, 0.5)  # The same evaluation once more.


def test_what_a_record_has_of_later_steps_stays_until_they_are_repeated(tmp_path):
  folder, records = tmp_path / "best_ckpt", {}
  run = Run(folder, records=records, committed_step=lambda: 0, top_k=2)
  run.score(2, 0.5)
  known = copy.deepcopy(records)
  for step, value in ((4, 0.9), (6, 0.7)):
    run.score(step, value)

  def steps():
    return [record["best_ckpt_global_step"] for record in read_record(str(folder))["best_ckpt_ranking"]]

  run = Run(folder, records=copy.deepcopy(known), committed_step=lambda: 0, top_k=2)
  assert steps() == [4, 6]
  run.score(3, 0.8)
  assert steps() == [4, 3]
  run.score(4, 0.1)  # Another course than before.
  assert steps() == [3, 2]
  assert [weights_of(folder, record) for record in run.rule.ranked] == [3.0, 2.0]


# ---- Crashes ----------------------------------------------------------------------------------------


class Killed(BaseException):
  pass


def kill(*args, **kwargs):
  raise Killed


def full(*args, **kwargs):
  raise OSError(28, "No space left on device")


@pytest.mark.parametrize("failure", [kill, full])
def test_a_record_that_is_not_written_leaves_old_weights_and_old_record_together(tmp_path, monkeypatch, failure):
  run = Run(tmp_path)
  run.score(1, 0.5)
  with monkeypatch.context() as patch:
    patch.setattr(best_folder, "write_text", failure)
    with pytest.raises((Killed, OSError)):
      run.score(2, 0.8)
  run.assert_agrees(1, 0.5)
  for again in (run, Run(tmp_path)):  # In this process and after a restart.
    assert again.rule.best_value == 0.5
  assert Run(tmp_path).score(3, 0.7)
  Run(tmp_path).assert_agrees(3, 0.7)
  assert not any("best_ckpt-2" in name for name in os.listdir(tmp_path))


@pytest.mark.parametrize("failure", [kill, full])
def test_weights_that_are_not_written_leave_the_old_ones_with_their_record(tmp_path, monkeypatch, failure):
  run = Run(tmp_path)
  run.score(1, 0.5)
  # Step 1 too: after a restart a step may be evaluated and exported again.
  for step in (2, 1):
    with monkeypatch.context() as patch:
      patch.setattr(tf.train.Checkpoint, "write", failure)
      with pytest.raises((Killed, OSError)):
        run.score(step, 0.8)
    run.assert_agrees(1, 0.5)


def test_a_kill_before_the_old_weights_are_removed_costs_nothing(tmp_path, monkeypatch):
  run = Run(tmp_path)
  run.score(1, 0.5)
  with monkeypatch.context() as patch:
    patch.setattr(best_folder, "write_state_file", kill)
    with pytest.raises(Killed):
      run.score(2, 0.8)
  Run(tmp_path).assert_agrees(2, 0.8)


@pytest.mark.parametrize("text", ["", '{"accuracy": 0.9, "best_ck', "[1]", "3"])
def test_a_truncated_record_is_named_and_the_next_finite_value_becomes_the_best(tmp_path, text, caplog):
  Run(tmp_path).score(1, 0.9)
  (tmp_path / "info.json").write_text(text, "utf-8")
  assert read_record(str(tmp_path)) is None
  assert "info.json cannot be read" in caplog.text
  assert Run(tmp_path).exported == 1.0  # The weights are still found.
  again = Run(tmp_path)
  again.score(2, 0.5)
  again.assert_agrees(2, 0.5)


def test_an_export_of_the_same_step_replaces_itself(folder):
  run = Run(folder)
  run.score(1, 0.5)
  run.score(1, 0.6)
  run.assert_agrees(1, 0.6)


# Each place at which an export touches the file system.
PLACES = (
  (tf.train.Checkpoint, "write"),
  (best_folder, "write_text"),
  (best_folder, "write_state_file"),
  (best_folder.BestFolder, "keep"),
)
SCORES = (0.5, 0.75, 0.25, 0.75, 1.0, 0.875, 0.0, 0.875)
COMMITTED = (3, 6)  # Checkpoints, each with the evaluations before it.


def best_set(folder):
  """Everything that a finished run leaves: the record, and the weights that it names and no others."""
  record = read_record(str(folder))
  ranked = record.get("best_ckpt_ranking", [record])
  assert sorted(path.stem for path in folder.glob("*.index")) == sorted(r["best_ckpt_file"] for r in ranked)
  return record, [weights_of(folder, one) for one in ranked]


def killed_and_resumed(folder, number, monkeypatch, before, rule):
  """Runs, is killed at the call `number` of those in PLACES, and goes on from the newest checkpoint; the end's set."""
  calls, saved = itertools.count(1), {0: {}}

  def watched(original):
    def call(*args, **kwargs):
      is_last = next(calls) == number
      if is_last and before:
        raise Killed
      result = original(*args, **kwargs)
      if is_last:
        raise Killed
      return result

    return call

  def course():
    committed = max(saved)
    records = copy.deepcopy(saved[committed])
    run = Run(folder, records=records, committed_step=lambda: max(saved), **rule)
    for step in range(max(committed, 1), len(SCORES) + 1):
      if step in COMMITTED:
        saved[step] = copy.deepcopy(records)  # The evaluation of that step comes after it, and is repeated.
      run.score(step, SCORES[step - 1])
    run.rule.finish()

  with monkeypatch.context() as patch:
    for owner, name in PLACES:
      patch.setattr(owner, name, watched(getattr(owner, name)))
    try:
      course()
    except Killed:
      course()
      return best_set(folder)
  return None  # There were not so many calls.


@pytest.mark.parametrize("rule", [{}, {"top_k": 2, "ties": "last"}, {"top_k": 3, "min_gain": 0.25}])
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_anywhere_leaves_the_set_of_a_run_that_was_not_killed(tmp_path, monkeypatch, rule, before):
  run = Run(tmp_path / "whole", records={}, committed_step=lambda: 0, **rule)
  for step, value in enumerate(SCORES, 1):
    run.score(step, value)
  run.rule.finish()
  expected = best_set(tmp_path / "whole")
  number = 0
  while True:
    number += 1
    # All in a folder of one name, which is the key of the record.
    found = killed_and_resumed(tmp_path / str(number) / "whole", number, monkeypatch, before, rule)
    if found is None:
      break
    assert found == expected, f"killed at call {number}"
  assert number > 15
