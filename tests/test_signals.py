"""Each test sends real signals to a small process of its own, which imports no TensorFlow."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
  """
  import sys, threading
  from official_trainer.signals import stop_on_signals

  asked = threading.Event()

  def request(name, code):
    print("asked by", name, int(code), flush=True)
    asked.set()

  with stop_on_signals(request, grace_secs=float(sys.argv[1]), last_words=lambda: "Last words."):
    print("ready", flush=True)
    {body}
  print("left", flush=True)
  """
)
COOPERATES = "asked.wait(60)"
DEAF = "threading.Event().wait(60)"


def start(body: str, grace_secs: float) -> subprocess.Popen:
  process = subprocess.Popen(
    [sys.executable, "-c", PROGRAM.replace("{body}", body), str(grace_secs)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == "ready\n"
  return process


@pytest.mark.parametrize(
  ("number", "said"), [(signal.SIGTERM, "asked by SIGTERM 42"), (signal.SIGINT, "asked by Ctrl-C 130")]
)
def test_a_signal_becomes_a_request_and_the_body_goes_on(number, said):
  process = start(COOPERATES, 60)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out.splitlines(), err) == (0, [said, "left"], "")


def test_a_body_that_outlasts_the_grace_time_is_ended_with_the_code_and_last_words():
  process = start(DEAF, 0.5)
  process.send_signal(signal.SIGTERM)
  out, err = process.communicate(timeout=60)
  assert process.returncode == 42
  assert "left" not in out
  assert err == "SIGTERM: the 0.5 s of runtime.grace_secs are over. Last words.\n"


def test_a_second_signal_ends_at_once():
  process = start(DEAF, 60)
  process.send_signal(signal.SIGINT)
  assert process.stdout.readline() == "asked by Ctrl-C 130\n"
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 130
  assert err == "SIGTERM again: ending at once. Last words.\n"


def test_the_handlers_of_before_are_back_afterwards():
  from official_trainer.signals import stop_on_signals

  before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
  with stop_on_signals(lambda name, code: None, grace_secs=1, last_words=str):
    assert signal.getsignal(signal.SIGINT) is not before[1]
  assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
