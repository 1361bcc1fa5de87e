import sysconfig
import traceback
from pathlib import Path

import official_trainer
from official_trainer import user_code
from official_trainer.user_code import Place, place_of, user_place

OURS = str(Path(official_trainer.__file__).parent / "trainer.py")
TENSORFLOW = str(Path(sysconfig.get_paths()["purelib"]) / "tensorflow" / "python" / "ops.py")
PACKAGE = str(Path(sysconfig.get_paths()["purelib"]) / "somebodys" / "layer.py")
STANDARD = str(Path(sysconfig.get_paths()["stdlib"]) / "threading.py")


def stack(*files):
  return [traceback.FrameSummary(file, line, "f", lookup_line=False) for line, file in enumerate(files, 1)]


def line(*files):
  place = user_place(stack(*files))
  return place and (place.file, place.line, place.is_users)


def test_the_innermost_line_of_the_user_is_chosen(monkeypatch):
  monkeypatch.setattr(user_code, "_package_folders", lambda: (str(Path(TENSORFLOW).parents[1]) + "/",))
  assert line("/me/run.py", OURS, "/me/task.py", "/me/loss.py", TENSORFLOW, STANDARD) == ("/me/loss.py", 4, True)
  assert line("/me/run.py", OURS, "/me/task.py", PACKAGE, TENSORFLOW) == ("/me/task.py", 3, True)


def test_who_called_the_library_is_not_the_user(monkeypatch):
  monkeypatch.setattr(user_code, "_package_folders", lambda: (str(Path(TENSORFLOW).parents[1]) + "/",))
  assert line("/me/run.py", OURS, TENSORFLOW) == (OURS, 2, False)
  assert line("/me/run.py", OURS, PACKAGE, OURS, TENSORFLOW) == (PACKAGE, 3, False)
  assert line("/me/run.py", TENSORFLOW) == ("/me/run.py", 1, True)


def test_frameworks_alone_and_empty_stacks_have_no_place():
  assert user_place([]) is None
  assert user_place(None) is None
  assert line(STANDARD, "<frozen importlib>", "/tmp/__autograph_generated_file1.py") is None


def test_a_folder_of_the_users_may_be_called_like_a_framework():
  assert line(OURS, "/me/tensorflow/task.py") == ("/me/tensorflow/task.py", 2, True)


def test_the_built_in_experiments_are_users_like_others():
  installed = str(Path(OURS).parent / "experiments" / "digits" / "task.py")
  assert line(OURS, installed) == (installed, 2, True)


def test_a_place_shows_its_line_and_reads_it():
  number = test_a_place_shows_its_line_and_reads_it.__code__.co_firstlineno
  place = place_of(test_a_place_shows_its_line_and_reads_it)
  assert place == Place(__file__, number, "test_a_place_shows_its_line_and_reads_it")
  assert place.text == "def test_a_place_shows_its_line_and_reads_it():"
  assert str(place) == f"{__file__}:{number}, in test_a_place_shows_its_line_and_reads_it"
  assert Place("/nowhere.py", 3).text == ""
  assert place_of(len) is None
