import os

import pytest
import tensorflow as tf

from official_trainer.distribute.scratch import is_kept, written_folder


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


@pytest.mark.parametrize("index", [0, 1])
def test_a_run_without_a_folder_writes_to_the_memory_of_each_process_until_its_end(index):
  with (
    pytest.raises(KeyError),
    written_folder("", Process(index)) as folder,
    written_folder("", Process(index)) as other,
  ):
    assert folder != other
    assert folder.startswith("ram://") and not is_kept(folder)
    with tf.io.gfile.GFile(f"{folder}/run.json", "w") as file:
      file.write("{}")
    raise KeyError
  assert not tf.io.gfile.exists(f"{folder}/run.json")
  assert is_kept("runs/a") and is_kept("ram://runs/a")
