import os

import pytest

from official_trainer.data import tfds_builder
from official_trainer.errors import ConfigError
from tests.data.tiny_sets import NUM_EXAMPLES, TinyRace


def test_a_set_that_another_process_prepared_meanwhile_is_used(tmp_path):
  folder = str(tmp_path)
  TinyRace.other_process = lambda: tfds_builder.prepare("tiny_race", folder)
  builder = tfds_builder.prepare("tiny_race", folder)
  assert TinyRace.other_process is None
  assert builder.info.splits["train"].num_examples == NUM_EXAMPLES
  assert len(builder.as_data_source("train")) == NUM_EXAMPLES
  # Neither process leaves anything else behind.
  assert os.listdir(tmp_path / "tiny_race") == ["1.0.0"]


def test_preparing_twice_writes_once(tmp_path):
  first = tfds_builder.prepare("tiny_race", str(tmp_path))
  before = os.stat(first.data_dir).st_mtime_ns
  assert tfds_builder.formats(tfds_builder.prepare("tiny_race", str(tmp_path))) == {"array_record"}
  assert os.stat(first.data_dir).st_mtime_ns == before


def test_an_incomplete_folder_is_an_error_and_not_a_set(tmp_path):
  (tmp_path / "tiny_race" / "1.0.0").mkdir(parents=True)
  with pytest.raises(ConfigError, match="holds an incomplete tiny_race"):
    tfds_builder.prepare("tiny_race", str(tmp_path))


def test_versions_and_built_in_sets_are_found_by_name(tmp_path):
  builder = tfds_builder.open_builder("sklearn_digits:1.0.0", str(tmp_path))
  assert builder.info.full_name == "sklearn_digits/1.0.0"
  assert not tfds_builder.is_prepared(builder)
