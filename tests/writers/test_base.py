import numpy as np
import pytest

from official_trainer.writers.base import Writer, WriterGroup, number, numbers


class Recorder(Writer):
  """Remembers calls in a list that recorders may share; fails in the methods it is told to."""

  def __init__(self, name="writer", calls=None, failing=()):
    self.calls = [] if calls is None else calls
    self._name = name
    self._failing = failing

  def _record(self, method, *arguments):
    self.calls.append((self._name, method, *arguments))
    if method in self._failing:
      raise OSError(f"{self._name} cannot {method}")

  def open(self, step, rows):
    self._record("open", step, rows)

  def scalars(self, step, mode, values):
    self._record("scalars", step, mode, values)

  def timings(self, step, mode, values):
    self._record("timings", step, mode, values)

  def text(self, step, tag, markdown):
    self._record("text", step, tag, markdown)

  def flush(self):
    self._record("flush")

  def close(self):
    self._record("close")


def test_a_group_hands_every_call_to_each_writer_in_order():
  calls = []
  group = WriterGroup([Recorder("a", calls), Recorder("b", calls)])
  rows = [(1, "train", {"loss": 1.0})]
  group.open(1, rows)
  group.scalars(2, "train", {"loss": 0.5})
  group.timings(2, "train", {"steps_per_second": 3.0})
  group.text(2, "config", "| a | b |")
  group.flush()
  group.close()
  expected = [
    ("open", 1, rows),
    ("scalars", 2, "train", {"loss": 0.5}),
    ("timings", 2, "train", {"steps_per_second": 3.0}),
    ("text", 2, "config", "| a | b |"),
    ("flush",),
    ("close",),
  ]
  assert calls == [(name, *call) for call in expected for name in "ab"]


def test_an_empty_group_accepts_every_call():
  group = WriterGroup()
  group.open(0, [])
  group.scalars(1, "train", {"loss": 1.0})
  group.flush()
  group.close()


@pytest.mark.parametrize("method", ["scalars", "flush", "close"])
def test_a_failing_writer_does_not_keep_the_call_from_the_others(method):
  calls = []
  group = WriterGroup([Recorder("a", calls), Recorder("b", calls, failing=[method]), Recorder("c", calls)])
  arguments = (1, "train", {"loss": 1.0}) if method == "scalars" else ()
  with pytest.raises(OSError, match=f"b cannot {method}"):
    getattr(group, method)(*arguments)
  assert [(name, called) for name, called, *_ in calls] == [(n, method) for n in "abc"]


def test_when_several_writers_fail_to_close_no_error_is_lost():
  group = WriterGroup([Recorder("a", failing=["close"]), Recorder("b"), Recorder("c", failing=["close"])])
  with pytest.raises(OSError, match="c cannot close") as caught:
    group.close()
  assert str(caught.value.__context__) == "a cannot close"


@pytest.mark.parametrize("value", [3, np.int64(3), np.float32(3), np.array(3.0), True + 2, 3.0])
def test_equal_numbers_of_any_type_become_the_same_python_float(value):
  assert type(number("loss", value)) is float
  assert repr(number("loss", value)) == "3.0"


def test_a_float32_keeps_its_exact_value():
  assert number("loss", np.float32(0.1)) == float(np.float32(0.1)) == 0.10000000149011612


@pytest.mark.parametrize(
  "value, found",
  [
    (np.ones([1]), r"a ndarray of shape \(1,\)"),
    (np.ones([2, 3]), r"a ndarray of shape \(2, 3\)"),
    ("0.5", "'0.5'"),
    (None, "None"),
    ({"loss": 1.0}, "{'loss': 1.0}"),
  ],
)
def test_what_is_not_one_number_is_refused_with_the_metrics_name(value, found):
  with pytest.raises(ValueError, match=f"metric 'head/ap' must be one number, got {found}"):
    numbers({"head/ap": value})
