import signal
import subprocess
import sys

import pytest

from official_trainer import launcher
from tests.processes import programs


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
  """Logs that are put into a temporary folder go with the test's own."""
  monkeypatch.setenv("TMPDIR", str(tmp_path))


def start(code, *options, arguments=("x",)):
  """Starts the launcher as a process of its own, with a small program in the trainer's place."""
  starter = (
    "import sys; from official_trainer import launcher;"
    f" sys.exit(launcher.main(sys.argv[1:], program={programs.python(code)!r}))"
  )
  return subprocess.Popen(
    [sys.executable, "-c", starter, *options, "--", *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(code, *options, arguments=("x",)):
  """Returns (exit code, standard output, standard error)."""
  process = start(code, *options, arguments=arguments)
  out, err = process.communicate(timeout=programs.LIMIT_SECS)
  return process.returncode, out, err


def test_the_chiefs_output_is_shown_and_each_process_has_a_log(tmp_path):
  code, out, err = run(
    "print('I am', job, index, sys.argv[1:])",
    *("--workers", "2", "--ps", "1"),
    arguments=[f"--model_dir={tmp_path}/run", "--mode=train"],
  )
  assert code == 0
  arguments = [f"--model_dir={tmp_path}/run", "--mode=train"]
  assert out == f"I am chief 0 {arguments}\n"
  assert (tmp_path / "run/logs/worker-1.log").read_text() == f"I am worker 1 {arguments}\n"
  assert f"[cluster] logs: {tmp_path}/run/logs" in err
  for task in ("chief 0", "worker 0", "worker 1", "ps 0"):
    assert f"[cluster] {task} started: process " in err
    assert f"[cluster] {task} ended with code 0 after " in err


def test_without_a_folder_the_logs_are_in_a_new_one_that_is_told(tmp_path):
  _, _, err = run("pass", "--workers", "1", "--log_dir", str(tmp_path / "mine"))
  assert f"logs: {tmp_path}/mine" in err and (tmp_path / "mine/worker-0.log").exists()
  _, _, err = run("pass", "--workers", "1", arguments=["--model_dir=gs://bucket/run"])
  assert "official-trainer-logs-" in err


COUNTED = (
  "path = f'{sys.argv[1]}/{index}'\n"
  "starts = len(open(path).read()) if os.path.exists(path) else 0\n"
  "open(path, 'a').write('x')\n"
)


def test_a_cluster_that_asks_for_it_is_started_again_as_often_as_allowed(tmp_path):
  code = COUNTED + "sys.exit(0 if starts == 2 else 42)"
  assert run(code, "--workers", "2", "--restarts", "1", arguments=[str(tmp_path)])[0] == 42
  assert [len((tmp_path / name).read_text()) for name in "01"] == [2, 2]
  assert run(code, "--workers", "2", "--restarts", "5", arguments=[str(tmp_path)])[0] == 0
  assert [len((tmp_path / name).read_text()) for name in "01"] == [3, 3]


def test_a_cluster_that_failed_is_not_started_again(tmp_path):
  code = COUNTED + "sys.exit(42 if index else 2)"
  assert run(code, "--workers", "2", "--restarts", "5", arguments=[str(tmp_path)])[0] == 2
  assert [len((tmp_path / name).read_text()) for name in "01"] == [1, 1]


SAVING = (
  "number = signal.SIGTERM if sys.argv[1] == 'SIGTERM' else signal.SIGINT\n"
  "signal.signal(number, lambda *_: (print('saved', flush=True), sys.exit(42 if sys.argv[1] == 'SIGTERM' else 130)))\n"
  "rest()"
)


def wait_for_logs(folder, text, count):
  programs.wait_until(lambda: sum(text in path.read_text() for path in folder.glob("*.log")) == count)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 42), ("SIGINT", 130)])
def test_one_signal_is_passed_on_to_all_and_nothing_is_started_again(tmp_path, name, code):
  process = start(SAVING, "--workers", "2", "--restarts", "3", "--log_dir", str(tmp_path), arguments=[name])
  wait_for_logs(tmp_path, "resting", 2)
  process.send_signal(signal.Signals[name])
  _, err = process.communicate(timeout=programs.LIMIT_SECS)
  assert process.returncode == code
  assert f"{name}: passed on to all" in err
  wait_for_logs(tmp_path, "saved", 2)


def test_a_second_signal_kills_all(tmp_path):
  code = "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True)); rest()"
  process = start(code, "--workers", "2", "--log_dir", str(tmp_path))
  wait_for_logs(tmp_path, "resting", 2)
  process.send_signal(signal.SIGINT)
  wait_for_logs(tmp_path, "no", 2)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=programs.LIMIT_SECS)
  assert process.returncode == 130
  assert "SIGINT again: killing all" in err
  assert err.count("ended with code -9") == 2


def test_processes_that_ignore_a_signal_are_killed_after_the_grace_period(tmp_path):
  code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); rest()"
  process = start(code, "--workers", "2", "--grace_secs", "0.2", "--log_dir", str(tmp_path))
  wait_for_logs(tmp_path, "resting", 2)
  process.terminate()
  _, err = process.communicate(timeout=programs.LIMIT_SECS)
  assert process.returncode == 43
  assert err.count("had not ended and was killed") == 2


@pytest.mark.parametrize(
  ("argv", "text"),
  [
    (["--workers", "2"], "must be given after `--`"),
    (["--workers", "0", "--", "x"], "--workers must be at least 1"),
    (["--worker", "1", "--", "x"], "required: --workers"),
  ],
)
def test_a_wrong_command_line_is_refused(argv, text, capsys):
  with pytest.raises(SystemExit) as raised:
    launcher.main(argv)
  assert raised.value.code == 2
  assert text in capsys.readouterr().err


def test_the_trainer_itself_is_what_is_started(tmp_path):
  command = [sys.executable, "-m", "official_trainer.launcher", "--workers", "2", "--log_dir", str(tmp_path), "--"]
  process = subprocess.run([*command, "--experiment=digits/cnn", "--print_config"], capture_output=True, text=True)
  assert process.returncode == 0, process.stderr
  assert "trainer.train_steps" in process.stdout
  assert (tmp_path / "worker-1.log").read_text("utf-8") == process.stdout
