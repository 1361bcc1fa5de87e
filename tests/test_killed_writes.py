"""Killed in the middle of a write, whatever it is: the same command again ends with the undisturbed run's bits."""

import signal
import subprocess
import sys

import pytest

from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.best_folder import best_checkpoint_in
from official_trainer.run import session as session_module
from official_trainer.testing import differences
from tests import tiny

LIMIT_SECS = 120

_KILLED = """
import sys
from official_trainer.testing import faults
from tests import tiny
from tests.test_killed_writes import SETTINGS
with {fault}:
  tiny.build(sys.argv[1], **SETTINGS).run()
"""

# With this seed each evaluation is the best so far.
SETTINGS = {**tiny.BEST, "seed": 4, "max_to_keep": 2, "steps_per_loop": 3}

MOMENTS = {
  # name: (fault, which the newest checkpoint may be afterwards: one may be on its way when the kill comes)
  "training": ("faults.kill_at(5)", (2, 4)),
  "evaluation": ("faults.kill_at(4, during='evaluation')", (2, 4)),
  "data of the first checkpoint": ("faults.kill_at_write('ckpt-0.data', free_bytes=50)", ()),
  "data": ("faults.kill_at_write('ckpt-4.data', free_bytes=50)", (2,)),
  "manifest": ("faults.kill_at_write('ckpt-4.manifest.json', free_bytes=50)", (2,)),
  "state file": ("faults.kill_at_write('checkpoint', after=2, free_bytes=50)", (2, 4)),
  "history": ("faults.kill_at_write('history.jsonl', after=2, free_bytes=50)", (2, 4)),
  "best weights": ("faults.kill_at_write('best_ckpt-4.data', free_bytes=50)", (2, 4)),
  "best record": ("faults.kill_at_write('info.json', after=1, free_bytes=50)", (2, 4)),
}


@pytest.fixture(autouse=True, scope="module")
def no_picture():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session_module, "plot_history", lambda *args: None)
    yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed") / "run"
  tiny.build(folder, **SETTINGS).run()
  return folder


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "newest"), MOMENTS.values(), ids=MOMENTS)
def test_a_kill_costs_only_what_was_not_committed(tmp_path, undisturbed, fault, newest):
  folder = tmp_path / "run"
  program = _KILLED.format(fault=fault)
  done = subprocess.run(
    [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=LIMIT_SECS, check=False
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  committed = tiny.committed(folder)
  assert committed[-1] in newest and 2 in committed if newest else committed == []
  for step in committed:
    manifest.verify(str(folder / f"ckpt-{step}"))
  if best := best_checkpoint_in(str(folder / "best_ckpt")):
    tiny.contents(best)
  assert tiny.build(folder, **SETTINGS).run().step == 6
  assert differences(undisturbed, folder) == []
  names = [path.name for path in folder.rglob("*")]
  assert [name for name in names if ".tmp-" in name or "_temp" in name] == []
