import pytest

from official_trainer.config.loading import load
from official_trainer.errors import ConfigError
from official_trainer.run import lengths


class Size:
  """Data of 20 examples, which nobody has counted before."""

  def __init__(self, num_examples=20):
    self._num_examples = num_examples

  def train(self):
    return self._num_examples

  def validation(self):
    return None


def loaded(*overrides):
  return load(experiment="tiny", experiment_modules=["tests.tiny"], params_override=",".join(overrides) or None)


def test_the_config_of_a_run_is_in_steps_with_a_line_on_each_duration():
  config, lines = lengths.resolve_lengths(loaded("trainer.train_steps=2 epochs"), "train", Size())
  assert config.trainer.train_steps == 10
  assert lines == ["trainer.train_steps: 2 epochs = 10 steps (20 examples, batch 4)"]
  found = loaded()
  assert lengths.resolve_lengths(found, "train", Size()) == (found.config, [])


def test_problems_come_with_where_they_were_written():
  with pytest.raises(ConfigError) as refused:
    lengths.resolve_lengths(loaded("trainer.train_steps=1 epoch", "trainer.checkpoints_at=[9]"), "train", Size())
  assert "1 problem in experiment 'tiny'" in str(refused.value)
  assert "must not be after trainer.train_steps (5), got [9].   (from --params_override)" in str(refused.value)
  with pytest.raises(ConfigError, match=r"set task.train_data.num_examples\.   \(from --params_override\)"):
    lengths.resolve_lengths(loaded("trainer.train_steps=1 epoch"), "train", Size(None))


def test_a_length_in_steps_is_said_in_epochs_too_where_the_size_is_known():
  found = loaded("trainer.train_steps=7", "trainer.validation_interval=3")
  assert list(lengths.notes(found, found.config, "train", 20)) == [
    "trainer.train_steps: 7 steps = 1.4 epochs (20 examples, batch 4)",
    "steps between two: reports every 2 (experiment), checkpoints every 2 (experiment)",
  ]
  (line,) = lengths.notes(found, found.config, "train_and_eval", None)
  assert "evaluations every 3 (--params_override)" in line


@pytest.mark.parametrize(
  ("counted", "written", "known", "text"),
  [
    (20, None, 20, None),
    (20, None, None, None),
    (None, None, 30, None),
    (20, 30, 30, None),
    (
      20,
      None,
      30,
      "the training data have 30 examples, but epochs are counted with 20, as there were when the run began.",
    ),
    (
      None,
      20,
      30,
      "the training data have 30 examples, but epochs are counted with 20, as task.train_data.num_examples says.",
    ),
  ],
)
def test_another_size_than_that_of_the_data_is_said(counted, written, known, text):
  assert lengths.size_warning(counted, written, known) == text
