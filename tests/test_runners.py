import pytest

from official_trainer import runners
from official_trainer.config.named import Named
from official_trainer.errors import ConfigError


@pytest.fixture(autouse=True)
def registered(monkeypatch):
  monkeypatch.setattr(runners, "_NAMED", Named("runner"))


def sweep(loaded, *, mode, model_dir):
  return loaded, mode, model_dir


def test_a_runner_is_found_by_the_name_under_which_it_is_registered():
  assert runners.register_runner("sweep")(sweep) is sweep
  assert runners.get_runner("sweep") is sweep
  runners.register_runner("sweep")(sweep)  # As a module does that is imported twice.


def test_two_runners_of_one_name_are_refused():
  runners.register_runner("sweep")(sweep)
  with pytest.raises(ConfigError, match="runner 'sweep': is registered twice: by .*:sweep"):
    runners.register_runner("sweep")(lambda loaded, *, mode, model_dir: None)


def test_a_runner_is_imported_by_module_and_function():
  assert runners.get_runner("tests.test_runners:sweep").__name__ == "sweep"


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("swep", r"trainer.runner: there is no runner 'swep'\. Did you mean 'sweep'\? Known: sweep\."),
    ("tests.test_runners:nothing", "trainer.runner: tests.test_runners has no function 'nothing'"),
    ("nowhere:sweep", "there is no module 'nowhere'"),
  ],
)
def test_a_runner_that_is_not_there_is_an_error(name, text):
  runners.register_runner("sweep")(sweep)
  with pytest.raises(ConfigError, match=text):
    runners.get_runner(name)
