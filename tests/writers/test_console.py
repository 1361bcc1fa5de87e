import io
import math
import subprocess
import sys

import pytest

from official_trainer.writers.console import Console


class Terminal(io.StringIO):
  def isatty(self):
    return True


def plain(**options):
  console = Console(io.StringIO(), terminal=False, **options)
  return console, console._stream


def bar(width=100, **options):
  console = Console(Terminal(), terminal=True, live=False, width=width, **options)
  return console, console._stream


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
  for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("TERM", "xterm-256color")


def loop(console, step, loss=0.0312, speed=812.0):
  console.scalars(step, "train", {"accuracy": 0.981, "training_loss": loss})
  console.timings(step, "train", {"steps_per_second": speed})
  console.flush()


def test_d46_a_loop_is_one_line_with_step_results_speed_and_time_left():
  console, stream = plain()
  console.open(0, [])
  console.start(0, 1000)
  loop(console, 200, speed=70)
  assert stream.getvalue() == (
    "step  200/1000  train       loss 0.0312    accuracy 0.9810   |  70.0 steps/s  ETA 0:00:12\n"
  )


def test_an_evaluation_is_a_line_without_time_left():
  console, stream = plain()
  console.start(0, 1000)
  console.timings(200, "validation", {"steps_per_second": 40.0})
  console.scalars(200, "validation", {"validation_loss": 0.5})
  assert stream.getvalue() == "step  200/1000  validation  loss 0.5000   |  40.0 steps/s\n"


def test_t52_an_empty_line_stands_between_the_evaluations_of_an_epoch_and_the_next():
  console, stream = plain()
  console.start(0, 12)
  for step in (2, 4, 6, 8):
    loop(console, step, speed=1.0)
    if step in (4, 6):
      for mode in ("validation", "other"):
        console.scalars(step, mode, {"loss": 0.5})
  console.close()
  assert stream.getvalue() == (
    "step  2/12  train       loss 0.0312    accuracy 0.9810   |  1.00 steps/s  ETA 0:00:10\n"
    "step  4/12  train       loss 0.0312    accuracy 0.9810   |  1.00 steps/s  ETA 0:00:08\n"
    "step  4/12  validation  loss 0.5000\n"
    "step  4/12  other       loss 0.5000\n"
    "\n"
    "step  6/12  train       loss 0.0312    accuracy 0.9810   |  1.00 steps/s  ETA 0:00:06\n"
    "step  6/12  validation  loss 0.5000\n"
    "step  6/12  other       loss 0.5000\n"
    "\n"
    "step  8/12  train       loss 0.0312    accuracy 0.9810   |  1.00 steps/s  ETA 0:00:04\n"
  )


def test_t51_lines_of_a_run_have_one_width_whatever_the_values():
  console, stream = plain()
  console.start(0, 100_000)
  losses = [0.0, 1e-30, -1e-30, 3e-5, 0.001, 0.5, 12.5, 99_999.9, 1e300, math.nan, math.inf]
  for index in range(50):
    loop(console, 1 + index * 2_000, losses[index % len(losses)], speed=10.0 ** (index % 5))
  assert len({text.index("  ETA") for text in stream.getvalue().splitlines()}) == 1


@pytest.mark.parametrize("timings_first", [True, False])
def test_results_and_speed_share_a_line_in_either_order(timings_first):
  console, stream = plain()
  console.start(0, 10)
  calls = [
    lambda: console.scalars(2, "train", {"loss": 1.0}),
    lambda: console.timings(2, "train", {"steps_per_second": 5.0}),
  ]
  for call in reversed(calls) if timings_first else calls:
    call()
  assert stream.getvalue().count("\n") == 1
  assert "loss 1.0000" in stream.getvalue() and "5.00 steps/s" in stream.getvalue()


@pytest.mark.parametrize(
  "call",
  [
    lambda console: console.flush(),
    lambda console: console.status("evaluating"),
    lambda console: console.stop(),
    lambda console: console.close(),
  ],
)
def test_results_whose_speed_is_not_measured_are_shown_without(call):
  console, stream = plain()
  console.start(0, 10)
  console.scalars(2, "train", {"loss": 1.0})
  assert stream.getvalue() == ""
  call(console)
  assert stream.getvalue() == "step  2/10  train       loss 1.0000\n"


def test_the_speed_of_another_loop_is_not_shown():
  console, stream = plain()
  console.start(0, 10)
  loop(console, 2)
  console.scalars(4, "train", {"loss": 1.0})
  console.flush()
  assert "steps/s" not in stream.getvalue().splitlines()[1]


def test_a_thousand_steps_in_loops_of_ten_are_at_most_a_line_a_loop_without_control_codes():
  console, stream = plain()
  console.open(0, [])
  console.start(0, 1000)
  for step in range(10, 1001, 10):
    console.status("compiling")
    loop(console, step)
    console.text(step, "config", "| a |")
    console.status("saving")
    console.status("")
  console.stop()
  console.close()
  text = stream.getvalue()
  assert text.count("\n") == 100
  assert "\r" not in text and "\x1b" not in text


@pytest.mark.parametrize("options", [{"quiet": True}, {"is_chief": False}])
@pytest.mark.parametrize("make", [plain, bar])
def test_d26_quiet_and_all_but_the_chief_show_no_results(make, options):
  console, stream = make(**options)
  console.open(0, [])
  console.start(0, 10)
  console.status("compiling")
  loop(console, 2)
  console.warn("the input cannot be resumed [exactly]")
  console.stop()
  console.scalars(4, "validation", {"loss": 1.0})
  console.close()
  assert stream.getvalue() == "warning: the input cannot be resumed [exactly]\n"


def test_a_warning_comes_after_the_results_before_it():
  console, stream = plain()
  console.start(0, 10)
  console.scalars(2, "train", {"loss": 1.0})
  console.warn("slow")
  assert [text.split()[0] for text in stream.getvalue().splitlines()] == ["step", "warning:"]


def test_results_outside_of_training_are_lines_without_a_total():
  console, stream = plain()
  console.open(500, [])
  console.scalars(500, "validation", {"accuracy": 0.5})
  console.close()
  assert stream.getvalue() == "step     500  validation  accuracy 0.5000\n"


def drawn(stream):
  """Returns what the terminal shows of the last frame, without colours."""
  import rich.text

  shown = rich.text.Text.from_ansi(stream.getvalue().split("\x1b[2K")[-1]).plain
  return [text.rstrip() for text in shown.replace("\xa0", " ").splitlines() if text.strip()]


def test_a_terminal_shows_a_bar_with_the_last_results_of_both_modes():
  console, stream = bar()
  console.open(0, [])
  console.start(0, 1000)
  loop(console, 400)
  console.scalars(400, "validation", {"validation_loss": 0.25, "accuracy": 0.97})
  loop(console, 500, loss=0.02)
  console.stop()
  progress, train, validation = drawn(stream)
  assert progress.endswith("500/1000 812 steps/s ETA 0:00:01")
  assert progress.startswith("━" * 20)
  assert train == "train       loss 0.0200    accuracy 0.9810"
  assert validation == "validation  loss 0.2500    accuracy 0.9700"


def test_a_resumed_bar_begins_at_the_restored_step_with_the_known_results():
  console, stream = bar()
  rows = [(100, "train", {"training_loss": 2.0}), (100, "validation", {"accuracy": 0.5})]
  console.open(100, [*rows, (200, "train", {"training_loss": 1.0})])
  console.start(100, 1000)
  console.stop()
  progress, train, validation = drawn(stream)
  assert progress.endswith(" 100/1000  ETA -:--:--")
  assert train == "train       loss 2.0000"
  assert validation == "validation  accuracy 0.5000"


def test_the_speed_of_an_evaluation_does_not_change_the_time_left():
  console, stream = bar()
  console.start(0, 1000)
  loop(console, 500, speed=100.0)
  console.scalars(500, "validation", {"loss": 1.0})
  console.timings(500, "validation", {"steps_per_second": 1.0})
  console.stop()
  assert drawn(stream)[0].endswith("500/1000 100 steps/s ETA 0:00:05")


def test_the_bar_says_what_the_run_is_busy_with():
  console, stream = bar()
  console.start(0, 10)
  console.status("compiling [xla]")
  console._display._progress.refresh()
  assert "compiling [xla]" in drawn(stream)[0]
  console.stop()
  assert "compiling" not in drawn(stream)[0]


def test_a_warning_stays_above_the_bar_as_it_was_written():
  console, stream = bar()
  console.start(0, 10)
  console.warn("slow: [red]" + "x" * 120)
  console.stop()
  assert "slow: [red]" + "x" * 120 in stream.getvalue()


@pytest.mark.parametrize("width", [20, 48, 80, 200])
def test_no_line_of_the_bar_is_wider_than_the_terminal(width):
  console, stream = bar(width=width)
  console.start(0, 1_000_000)
  console.status("evaluating")
  console.scalars(10, "train", {f"head/average_precision_{index}": 0.5 for index in range(12)})
  loop(console, 20)
  console.stop()
  assert max(map(len, drawn(stream))) <= width


def test_the_bar_gives_the_cursor_back_and_later_results_are_lines():
  console, stream = bar()
  console.start(0, 10)
  loop(console, 10)
  console.stop()
  assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
  length = len(stream.getvalue())
  console.scalars(10, "validation", {"accuracy": 0.5})
  console.close()
  assert stream.getvalue()[length:] == "step 10/10  validation  accuracy 0.5000\n"


def test_starting_again_ends_the_bar_before():
  console, stream = bar()
  console.start(0, 10)
  console.start(10, 20)
  console.stop()
  assert drawn(stream)[0].endswith("10/20  ETA -:--:--")


@pytest.mark.parametrize(
  "stream, term, is_terminal",
  [
    (Terminal(), "xterm", True),
    (Terminal(), "dumb", False),
    (Terminal(), "", False),
    (io.StringIO(), "xterm", False),
  ],
)
def test_the_stream_is_asked_whether_it_is_a_terminal(monkeypatch, stream, term, is_terminal):
  monkeypatch.setenv("TERM", term)
  assert Console(stream)._terminal is is_terminal


def test_the_default_stream_is_standard_error(capsys):
  console = Console(terminal=False)
  console.warn("slow")
  captured = capsys.readouterr()
  assert captured.out == "" and captured.err == "warning: slow\n"


def test_a_piped_run_imports_neither_rich_nor_matplotlib_nor_tensorflow():
  code = """
import sys
from official_trainer.writers.console import Console
console = Console(sys.stdout)
console.start(0, 10)
console.scalars(2, "train", {"loss": 1.0})
console.close()
heavy = {"rich", "matplotlib", "tensorflow", "tensorboard"}
print(sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""
  result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert result.stdout == "step  2/10  train       loss 1.0000\n[]\n"
