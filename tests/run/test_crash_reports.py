"""What is left behind by a run that diverged, failed or hung."""

import json

import pytest
import tensorflow as tf

from official_trainer.crash import newest_bundle, read_bundle
from official_trainer.errors import ConfigError, TrainingDiverged
from official_trainer.run.crash_reports import CrashReports
from official_trainer.timing.phases import Phase
from tests import tiny
from tests.run.test_session_recovery import poisoned


def test_an_error_leaves_its_traceback_step_rows_and_versions(tmp_path):
  facts = {"facts": {"seed": tiny.SEED}}
  built = tiny.build(tmp_path, session={**tiny.interrupted_by(4), **facts})
  with pytest.raises(tiny.Interrupted):
    built.run()
  bundle = newest_bundle(str(tmp_path))
  assert (bundle.kind, bundle.step, bundle.what) == ("error", 4, "Interrupted: at step 4")
  assert "interrupted_by" in bundle.traceback or "in crash" in bundle.traceback
  assert [(step, mode) for step, mode, _ in bundle.rows] == [(2, "train"), (2, "validation"), (4, "train")]
  assert bundle.facts == {"seed": tiny.SEED}
  assert "crashes/step-4.json; --mode=replay looks at the step again" in built.said


def test_a_divergence_leaves_its_window(tmp_path):
  with pytest.raises(TrainingDiverged):
    tiny.build(tmp_path, task_class=poisoned(3)).run()
  bundle = newest_bundle(str(tmp_path))
  assert (bundle.kind, bundle.start, bundle.step, bundle.what) == ("diverged", 2, 4, "the training loss is nan")


def test_each_divergence_that_was_recovered_from_leaves_one_with_what_was_left_out_by_then(tmp_path):
  tiny.build(tmp_path, task_class=poisoned(1, 5), train_steps=8, recovery_max_trials=2).run()
  first, second = (read_bundle(str(tmp_path), step) for step in (2, 4))
  assert (first.start, first.skipped) == (0, ())
  assert (second.start, second.skipped) == (2, ((0, 2),))


def test_what_explains_itself_leaves_none(tmp_path):
  built = tiny.build(tmp_path, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="acuracy")
  with pytest.raises(ConfigError, match="acuracy"):
    built.run()
  assert not (tmp_path / "crashes").exists()


def test_a_bundle_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch, caplog):
  built = tiny.build(tmp_path, session=tiny.interrupted_by(2))

  def full(self, model_dir):
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

  monkeypatch.setattr("official_trainer.crash.CrashBundle.save", full)
  with pytest.raises(tiny.Interrupted):
    built.run()
  assert "could not be written: No space left on device" in caplog.text


def test_a_hang_shows_all_stacks_writes_the_bundle_and_ends_with_its_code(tmp_path, capfd):
  left = []
  built = tiny.build(tmp_path, mode="train")
  reports = CrashReports(built.trainer, str(tmp_path), {}, warn=lambda text: None, leave=left.append)
  reports.hung(Phase.EVAL, 61.0, 40)
  assert left == [43]
  errors = capfd.readouterr().err
  assert "hang: nothing has moved for 61 s in phase 'eval' after step 40 (runtime.hang_secs)" in errors
  assert "test_a_hang_shows_all_stacks" in errors
  assert json.loads((tmp_path / "crashes" / "step-40.json").read_text())["kind"] == "hang"
