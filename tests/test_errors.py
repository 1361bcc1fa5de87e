import pickle

import pytest

from official_trainer import errors
from official_trainer.errors import ConfigError, Origin, Problem


def test_a_config_error_lists_every_problem_with_its_origin():
  error = ConfigError(
    [
      Problem("trainer.a", "must be at least 1, got 0.", Origin("config_file", "fast.yaml", 14)),
      Problem("trainer.b", "is wrong.\nDo this.", Origin("--params_override")),
      Problem("trainer.c", "is missing."),
    ],
    "digits/cnn",
  )
  assert str(error).splitlines() == [
    "3 problems in experiment 'digits/cnn'",
    "  trainer.a: must be at least 1, got 0.   (from fast.yaml:14)",
    "  trainer.b: is wrong.",
    "    Do this.   (from --params_override)",
    "  trainer.c: is missing.",
  ]


def test_a_default_is_not_named_as_a_source():
  assert str(Problem("a", "is wrong.", errors.DEFAULT)) == "a: is wrong."


@pytest.mark.parametrize(
  ("origin", "text"),
  [
    (Origin("gin"), "gin"),
    (Origin("gin", "a.gin", 3), "gin, a.gin:3"),
    (Origin("config_file", "a.yaml"), "a.yaml"),
  ],
)
def test_an_origin_says_layer_file_and_line(origin, text):
  assert str(origin) == text


@pytest.mark.parametrize(
  ("error", "code"),
  [
    (ConfigError.of("a", "is wrong."), 2),
    (errors.CheckpointMismatch("shapes differ"), 1),
    (errors.TrainingDiverged(7, "loss is nan"), 3),
    (errors.Preempted(7, "SIGTERM"), 42),
    (errors.Preempted(7, "Ctrl-C", errors.INTERRUPTED), 130),
    (KeyboardInterrupt(), 130),
    (errors.NotWritten("run.json", "full"), 1),
    (OSError(), 1),
  ],
)
def test_every_error_has_its_exit_code(error, code):
  assert errors.exit_code(error) == code


@pytest.mark.parametrize(
  "error",
  [
    ConfigError([Problem("a", "is wrong.", Origin("gin"))], "name"),
    errors.TrainingDiverged(7, "loss is nan"),
    errors.TrainingDiverged(7, "loss is nan", start=4, window=(6, 9), tried=["once"]),
    errors.Preempted(7, "SIGTERM"),
    errors.Preempted(7, "SIGTERM", errors.ERROR, is_saved=False),
    errors.NotWritten("run.json", "full"),
  ],
)
def test_errors_survive_the_way_to_another_process(error):
  copy = pickle.loads(pickle.dumps(error))
  assert str(copy) == str(error)
  assert vars(copy) == vars(error)


def test_of_many_names_the_first_are_shown_and_the_others_counted():
  assert errors.first_of(["a", "b"]) == "a, b"
  assert errors.first_of(range(7)) == "0, 1, 2, 3, 4 and 2 more"
