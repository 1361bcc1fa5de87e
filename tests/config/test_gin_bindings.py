import subprocess
import sys

import pytest

from official_trainer.config import gin_bindings, loading
from official_trainer.errors import ConfigError, Origin


def values(bindings):
  merged = {}
  for document in bindings.layers:
    merged.update(document.values)
  return merged


def test_t45_bindings_of_the_config_tree_are_taken_and_the_others_left_for_gin(tmp_path):
  path = tmp_path / "run.gin"
  path.write_text(
    "# a comment\n"
    "trainer.train_steps = 10\n"
    "my_layer.width = 3\n"
    "trainer.checkpoints_at = (\n    1,\n    2)\n"
    "task.model:\n  filters = [1, 2]\n  dropout_rate = 0.5\n"
    "scope/trainer.x = 1\n"
  )
  bindings = gin_bindings.parse([str(path)], ["runtime.distribution_strategy = 'off'"])
  assert values(bindings) == {
    "trainer.train_steps": 10,
    "trainer.checkpoints_at": [1, 2],
    "task.model.filters": [1, 2],
    "task.model.dropout_rate": 0.5,
    "runtime.distribution_strategy": "off",
  }
  left = [line for line in "\n".join(bindings.text).splitlines() if line]
  assert left == ["# a comment", "my_layer.width = 3", "scope/trainer.x = 1"]
  document = bindings.layers[0]
  assert document.origin("gin", "trainer.checkpoints_at") == Origin("gin", str(path), 4)


def test_macros_have_values_and_references_are_refused():
  bindings = gin_bindings.parse([], ["STEPS = 7\nALSO = %STEPS", "trainer.train_steps = %ALSO"])
  assert values(bindings) == {"trainer.train_steps": 7}
  with pytest.raises(ConfigError, match="trainer.train_steps: @my_fn.. is not a value"):
    gin_bindings.parse([], ["trainer.train_steps = @my_fn()"])
  with pytest.raises(ConfigError, match="%NONE is not a value"):
    gin_bindings.parse([], ["trainer.train_steps = %NONE"])


def test_included_files_are_read_in_their_place(tmp_path):
  (tmp_path / "base.gin").write_text("trainer.train_steps = 1\ntrainer.max_to_keep = 1\nf.x = 1\n")
  path = tmp_path / "run.gin"
  path.write_text("trainer.train_steps = 0\ninclude 'base.gin'\ntrainer.max_to_keep = 2\nf.y = 2\n")
  bindings = gin_bindings.parse([str(path)], [])
  assert values(bindings) == {"trainer.train_steps": 1, "trainer.max_to_keep": 2}
  assert "f.x = 1" in bindings.text[0]
  assert "include" not in bindings.text[0]


def test_broken_gin_is_named_with_file_and_line(tmp_path):
  path = tmp_path / "run.gin"
  path.write_text("trainer.train_steps = 1\ntrainer.max_to_keep 3\n")
  with pytest.raises(ConfigError, match=rf"cannot be read as gin.*{path}:2"):
    gin_bindings.parse([str(path)], [])
  with pytest.raises(ConfigError, match="--gin_file: cannot read 'nowhere.gin'"):
    gin_bindings.parse(["nowhere.gin"], [])


def test_an_unknown_key_in_gin_is_refused_like_in_a_file():
  with pytest.raises(ConfigError, match=r"trainer.train_stesp: unknown key.*\(from gin\)"):
    loading.load(experiment="digits/cnn", gin_params=["trainer.train_stesp = 1"])


def test_the_rest_reaches_gin_and_the_operative_config_shows_it():
  program = """
import gin
from official_trainer.config import gin_bindings
from official_trainer.errors import ConfigError

@gin.configurable
def layer(width=1):
  return width

gin_bindings.parse([], ["trainer.train_steps = 1", "layer.width = 5"]).apply()
print(layer())
print("layer.width = 5" in gin_bindings.operative_config())
try:
  gin_bindings.parse([], ["lyaer.width = 5"]).apply()
except ConfigError as error:
  print("lyaer" in str(error))
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ["5", "True", "True"]


def test_without_bindings_gin_is_not_touched():
  assert gin_bindings.parse([], []) == gin_bindings.GinBindings()
  gin_bindings.GinBindings().apply()
