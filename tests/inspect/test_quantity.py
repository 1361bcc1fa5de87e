import pytest

from official_trainer.inspect.quantity import quantity


@pytest.mark.parametrize(
  ("number", "text"),
  [(0, "0 B"), (812, "812 B"), (999, "999 B"), (1000, "1 kB"), (94_371_840, "94.4 MB"), (999_999, "1 MB")],
)
def test_a_number_is_shown_in_three_digits(number, text):
  assert quantity(number, "B") == text
