"""The disk is full, or read-only, at each kind of write in the middle of a run: nothing that was good is lost.

The run ends with an error that names the file and the cause. The same run again, with room, ends with the bits of a run
that nothing disturbed, and cleans up.
"""

import contextlib
import os
import re
import shutil
import subprocess

import pytest
import tensorflow as tf
from absl import flags

from official_trainer import atomic, errors, train
from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best_folder import best_checkpoint_in, step_of
from official_trainer.config.loading import load
from official_trainer.errors import NotWritten
from official_trainer.run import session as session_module
from official_trainer.runner import Runner
from official_trainer.testing import assert_resumes_exactly, differences, faults
from tests import tiny

# With this seed the score rises from evaluation to evaluation: each exports.
BEST = "trainer.best_checkpoint_export_subdir=best_ckpt,trainer.best_checkpoint_eval_metric=accuracy"
SETTINGS = ("runtime.seed=4,runtime.distribution_strategy=one_device,trainer.max_to_keep=2", BEST)
LEFTOVERS = re.compile(r"\.tmp-|_temp|tempstate")


def run(folder, *overrides, mode="train_and_eval"):
  loaded = load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=[*SETTINGS, *overrides])
  return Runner(loaded, mode=mode, model_dir=str(folder), quiet=True).run()


@pytest.fixture(scope="module", autouse=True)
def picture():
  """Draws no curves, which take longer than the rest of a run, but writes the file."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda rows, path, title: atomic.write_text(path, title * 20))
    yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed") / "run"
  run(folder)
  return folder


def assert_everything_there_is_whole(folder):
  for step in tiny.committed(folder):
    manifest.verify(str(folder / f"ckpt-{step}"))
  if best := best_checkpoint_in(str(folder / "best_ckpt")):
    tiny.contents(best)


def assert_runs_to_the_same_end(folder, undisturbed, *overrides, mode="train_and_eval"):
  assert run(folder, *overrides, mode=mode).step == 6
  assert differences(undisturbed, folder) == []
  assert [path.name for path in folder.rglob("*") if LEFTOVERS.search(path.name)] == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("trained") / "run"
  run(folder, mode="train")
  return folder


SAVING = {
  # name: (file, writes that go well before, file that the error names, committed steps afterwards)
  "data of the first": ("ckpt-0.data", 0, "ckpt-0", []),
  "data": ("ckpt-4.data", 0, "ckpt-4", [0, 2]),
  "data of the last": ("ckpt-6.data", 0, "ckpt-6", [2, 4]),
  "manifest": ("ckpt-4.manifest.json", 0, "ckpt-4.manifest.json", [0, 2]),
  # Without it the checkpoint is whole. The next save will delete what is too old to be kept.
  "state file": ("checkpoint", 2, "checkpoint", [0, 2, 4]),
}


@pytest.mark.parametrize(
  ("name", "asynchronous"), [*((name, "true") for name in SAVING), ("data", "false"), ("manifest", "false")]
)
def test_a_save_that_fails_costs_that_save_only(tmp_path, trained, name, asynchronous):
  files, after, named, left = SAVING[name]
  settings = f"trainer.async_checkpoint={asynchronous}"
  with pytest.raises(NotWritten, match=f"/run/{named} could not be written: File too large"):
    with faults.full_disk(files, after=after, free_bytes=7) as fault:
      run(tmp_path / "run", settings, mode="train")
  assert fault.happened == 1
  assert tiny.committed(tmp_path / "run") == left
  assert_everything_there_is_whole(tmp_path / "run")
  assert_runs_to_the_same_end(tmp_path / "run", trained, settings, mode="train")


OTHERS = {
  # name: (file, writes that go well before, the newest checkpoint afterwards)
  "run record": ("run.json", 0, None),
  "settings": ("params.yaml", 0, None),
  "origins of the settings": ("params_provenance.yaml", 0, None),
  "history": ("history.jsonl", 2, 4),
  "timings": ("timings.jsonl", 2, 4),
  "event file that begins": ("events.out.tfevents.*", 0, 0),
  "event file": ("events.out.tfevents.*", 8, 4),
  "first best weights": ("best_ckpt-2.data", 0, 2),
  "best weights": ("best_ckpt-4.data", 0, 4),
  "best record": ("info.json", 1, 4),
  "state file of the best": ("checkpoint", 4, 4),
  "picture": ("history.png", 0, 6),
}


@pytest.mark.parametrize(("files", "after", "newest"), OTHERS.values(), ids=OTHERS)
def test_another_write_that_fails_ends_the_run_and_costs_nothing(tmp_path, undisturbed, files, after, newest):
  with pytest.raises(NotWritten, match=r"/run/.* could not be written: File too large") as error:
    with faults.full_disk(files, after=after, free_bytes=7):
      run(tmp_path / "run")
  assert re.search(files.replace(".data", "").replace("*", ".*"), error.value.path)
  assert tiny.committed(tmp_path / "run")[-1:] == ([] if newest is None else [newest])
  assert_everything_there_is_whole(tmp_path / "run")
  if files in ("best_ckpt-4.data", "info.json"):
    assert step_of(str(tmp_path / "run" / "best_ckpt")) == 2
  assert_runs_to_the_same_end(tmp_path / "run", undisturbed)


def test_a_history_that_cannot_be_written_anew_stays_as_it_is(tmp_path, undisturbed):
  with pytest.raises(faults.SimulatedCrash), faults.crash_at(5):
    run(tmp_path / "run")
  before = (tmp_path / "run" / "history.jsonl").read_bytes()
  with pytest.raises(NotWritten, match="/run/history.jsonl could not"), faults.full_disk("history.jsonl", free_bytes=7):
    run(tmp_path / "run")
  assert (tmp_path / "run" / "history.jsonl").read_bytes() == before
  assert_runs_to_the_same_end(tmp_path / "run", undisturbed)


@pytest.mark.parametrize(
  ("files", "left"),
  [
    ("ckpt-4.data", "The newest checkpoint is that of step 2."),
    ("run.json", "No checkpoint was saved yet."),
  ],
)
def test_the_program_says_in_one_line_what_was_not_written_and_what_to_do(tmp_path, capfd, files, left):
  arguments = ["--experiment=tiny", "--experiment_module=tests.tiny", "--mode=train", f"--model_dir={tmp_path / 'run'}"]
  with faults.full_disk(files):
    assert train.main(["train", *arguments, "--quiet"], flags.FlagValues()) == errors.ERROR
  *_, line = capfd.readouterr().err.splitlines()
  name = files.removesuffix(".data")
  assert line == (
    f"NotWritten: {tmp_path}/run/{name} could not be written: File too large."
    f" {left} Free space, or make the folder writable, and give the same command again."
  )
  assert train.main(["train", *arguments, "--quiet"], flags.FlagValues()) == errors.DONE


@contextlib.contextmanager
def possible():
  """Skips a test whose fault this user cannot make."""
  try:
    yield
  except RuntimeError as error:
    if "read_only() cannot" in str(error):
      pytest.skip(str(error))
    raise


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_folder_that_turns_read_only_in_the_middle_of_a_run(tmp_path, asynchronous):
  settings = {**tiny.BEST, "async_checkpoint": asynchronous}
  tiny.build(tmp_path / "undisturbed", **settings).run()
  folder = tmp_path / "run"
  with contextlib.ExitStack() as stack:

    def lock(event):
      if event.step == 2:
        stack.enter_context(faults.read_only(folder))

    with possible(), pytest.raises(NotWritten, match=r"/run/.* could not be written: (Read-only|Permission)"):
      tiny.build(folder, **settings, session={"train_actions": [lock]}).run()
  assert_everything_there_is_whole(folder)
  assert tiny.build(folder, **settings).run().step == 6
  assert differences(tmp_path / "undisturbed", folder) == []


def test_a_run_in_a_read_only_folder_ends_before_anything_is_built(tmp_path):
  (tmp_path / "run").mkdir()
  with possible(), faults.read_only(tmp_path / "run"), pytest.raises(NotWritten, match="/run/run.json could not be"):
    run(tmp_path / "run")
  assert os.listdir(tmp_path / "run") == []


def test_a_run_in_a_read_only_folder_is_evaluated_though_without_curves(undisturbed, caplog):
  expected = run(undisturbed, mode="eval").metrics
  with possible(), faults.read_only(undisturbed):
    assert run(undisturbed, mode="eval").metrics == expected
  assert "could not be written: " in caplog.text and "The result is complete without it." in caplog.text


@pytest.fixture
def small_disk(tmp_path):
  """A file system of its own, whose size can be changed; skips where this user may not mount one."""
  folder = tmp_path / "disk"
  folder.mkdir()

  def sized(*options):
    return subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)

  made = sized("-t", "tmpfs", "-o", "size=4k", "tmpfs") if shutil.which("mount") else None
  if made is None or made.returncode:
    pytest.skip("only who may mount file systems can have a disk that is really full")
  try:
    yield folder, lambda size: sized("-o", f"remount,size={size}")
  finally:
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full_wherever_it_strikes(small_disk, undisturbed):
  disk, resize = small_disk
  struck = set()
  for pages in range(2, 100):
    resize(f"{pages * 4}k")
    try:
      run(disk / "run")
      break
    except NotWritten as error:
      assert error.reason == "No space left on device"
      struck.add(re.sub(r"[\d.]+", "#", os.path.basename(error.path)))
    assert_everything_there_is_whole(disk / "run")
  assert len(struck) >= 3
  assert differences(undisturbed, disk / "run") == []


def test_what_killed_processes_left_is_cleaned_up(tmp_path, undisturbed):
  folder = tmp_path / "run"
  with pytest.raises(faults.SimulatedCrash), faults.crash_at(5):
    run(folder)
  (folder / ".run.json.tmp-12").write_text("half")
  (folder / "best_ckpt" / ".info.json.tmp-12").write_text("half")
  for temporary in (folder / "ckpt-6_temp", folder / "best_ckpt" / "best_ckpt-6_temp"):
    temporary.mkdir()
    (temporary / "part-00000-of-00001.data-00000-of-00001.tempstate12").write_text("half")
  for half in (folder / "ckpt-5.data-00000-of-00001", folder / "best_ckpt" / "best_ckpt-4.data-00000-of-00001"):
    half.write_text("half")
  assert_runs_to_the_same_end(folder, undisturbed)
  assert [path.name for path in folder.glob("ckpt-5.*")] == []
  assert len(list((folder / "best_ckpt").glob("*.data-*"))) == 1


def test_a_run_in_memory_resumes_exactly(tmp_path, undisturbed):
  folder = f"ram://{tmp_path.name}"
  assert_resumes_exactly("tiny", folder, crash_steps=(3,), modules=["tests.tiny"], overrides=SETTINGS)
  assert differences(undisturbed, f"{folder}/crashed") == []
  assert not [name for name in tf.io.gfile.listdir(f"{folder}/crashed") if LEFTOVERS.search(name)]
