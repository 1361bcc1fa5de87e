"""One bit of the newest checkpoint is flipped: wherever it is, the run goes on from a good state."""

import random
import shutil

import numpy as np
import pytest

from official_trainer.run import session as session_module
from tests import tiny

FLIPS = 200
SEED = 20


@pytest.fixture
def finished(tmp_path, monkeypatch):
  monkeypatch.setattr(session_module, "plot_history", lambda *args: None)
  built = tiny.build(tmp_path / "run", mode="train", ema=tiny.EmaConfig(average_decay=0.9))
  built.run()
  return tmp_path / "run", built


def test_any_flipped_bit_of_the_newest_checkpoint_ends_in_a_good_state(finished, tmp_path, caplog):
  folder, built = finished
  store, state = built.session.store, built.state
  good = {step: tiny.contents(folder / f"ckpt-{step}") for step in (4, 6)}
  names = tiny.files_of(folder, 6)
  whole = {name: (folder / name).read_bytes() for name in names}
  draw = random.Random(SEED)
  restored = []
  for _ in range(FLIPS):
    name = draw.choices(names, weights=[len(whole[name]) for name in names])[0]
    place, bit = draw.randrange(len(whole[name])), draw.randrange(8)
    flipped = bytearray(whole[name])
    flipped[place] ^= 1 << bit
    (folder / name).write_bytes(flipped)
    caplog.clear()
    with built.trainer.strategy.scope():
      step = store.restore_latest()
    where = f"{name}, byte {place}, bit {bit}"
    # A flip in the manifest may leave its meaning, such as one in the name of a version: then nothing is lost.
    assert step == 4 or (step == 6 and name.endswith(".manifest.json")), where
    if step == 4:
      assert "ckpt-6 is broken" in caplog.text and "set aside" in caplog.text, where
    for variable, key in zip(state.ema.averages, ("ema/0", "ema/1"), strict=True):
      np.testing.assert_array_equal(variable.numpy(), good[step][f"{key}/.ATTRIBUTES/VARIABLE_VALUE"], where)
    restored.append(step)
    shutil.rmtree(folder / "broken_checkpoints", ignore_errors=True)
    for other, content in whole.items():
      (folder / other).write_bytes(content)
  assert restored.count(4) > 0.8 * FLIPS
