import pytest

from official_trainer.config.comparison import comparison


@pytest.mark.parametrize(
  ("metric", "written", "result"),
  [
    ("accuracy", None, "higher"),
    ("validation_loss", None, "lower"),
    ("a|loss", None, "lower"),
    ("loss_scale", None, "higher"),
    ("validation_loss", "higher", "higher"),
    ("accuracy", "lower", "lower"),
  ],
)
def test_a_loss_is_better_when_lower_unless_the_config_says_otherwise(metric, written, result):
  assert comparison(metric, written) == result
