import os

import pytest

from official_trainer.distribute.scratch import written_folder


class Process:
  def __init__(self, index):
    self.index = index
    self.is_chief = index == 0


def test_the_chief_writes_the_runs_folder():
  with written_folder("runs/a", Process(0)) as folder:
    assert folder == "runs/a"


def test_the_others_write_what_is_removed_at_the_end(tmp_path):
  with written_folder(str(tmp_path), Process(1)) as folder, written_folder(str(tmp_path), Process(2)) as other:
    assert len({folder, other, str(tmp_path)}) == 3
    assert os.listdir(folder) == []
  assert not os.path.exists(folder)


def test_what_a_kill_has_left_is_removed_by_the_next_start(tmp_path):
  with pytest.raises(KeyError), written_folder(str(tmp_path), Process(1)) as folder:
    raise KeyError
  assert not os.path.exists(folder)
  os.makedirs(folder)
  open(os.path.join(folder, "ckpt-8.index"), "w").close()
  with written_folder(str(tmp_path), Process(1)) as again:
    assert again == folder
    assert os.listdir(again) == []
