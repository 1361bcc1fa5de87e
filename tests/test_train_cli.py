import json
import subprocess
import sys
import types
import typing

import pytest
from absl import flags

from official_trainer import errors, train


@pytest.fixture
def call(capsys):
  """Runs the program in this process with flags of its own; returns code, stdout and stderr."""

  def run(*arguments):
    code = train.main(["train", *arguments], flags.FlagValues())
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return code, out.out, out.err

  return run


DEFAULTS = {"allow_config_change": [], "allow_checkpoint_mismatch": [], "began": train._BEGAN}
"""What the runner gets for flags that are not given."""


@pytest.fixture
def runner(monkeypatch):
  """Puts a runner that only remembers in the place of the real one."""
  calls = []

  class Report(typing.NamedTuple):
    is_clean: bool

  class Runner:
    def __init__(self, loaded, **arguments):
      calls.append((loaded, arguments))

    def replay(self, step):
      return f"step {step} again"

    def export(self):
      return types.SimpleNamespace(folder="runs/a/export/4", step=4, weights="raw", trials={})

    def check_tpu(self):
      clean = calls[-1][0].config.trainer.train_steps != 13
      return Report(clean)

    def run(self):
      if calls[-1][1]["checkpoint"] == "diverge":
        raise errors.TrainingDiverged(3, "training_loss is nan")
      if calls[-1][1]["checkpoint"] == "stop":
        raise errors.Preempted(3, "SIGTERM")
      if calls[-1][1]["checkpoint"] == "ctrl-c":
        raise KeyboardInterrupt
      return types.SimpleNamespace(step=4, metrics={"accuracy": 0.5})

  module = types.ModuleType("official_trainer.runner")
  module.Runner = Runner
  monkeypatch.setitem(sys.modules, "official_trainer.runner", module)
  return calls


def test_help_shows_the_flags_and_examples(call):
  code, out, err = call("--help")
  assert (code, err) == (0, "")
  for word in (
    "--experiment",
    "--mode",
    "--params_override",
    "--print_config",
    "--tf_data_service",
  ):
    assert word in out
  assert "train_and_post_eval" in out


def test_experiments_are_listed_one_a_line(call):
  code, out, _ = call("--list_experiments")
  assert code == 0
  assert {"digits/cnn", "digits/mlp"} <= set(out.splitlines())


def test_the_config_is_printed_with_origins_without_mode_or_folder(call):
  code, out, err = call("--experiment=digits/cnn", "--params_override=runtime.seed=3", "--print_config")
  assert (code, err) == (0, "")
  assert any(line.split() == ["runtime.seed", "=", "3", "#", "--params_override"] for line in out.splitlines())


def test_wrong_flags_and_wrong_settings_are_reported_together(call):
  code, out, err = call("--experiment=digits/cnn", "--params_override=trainer.trian_steps=3", "--model_dir=runs/*")
  assert (code, out) == (2, "")
  assert err.startswith("ConfigError: 2 problems in experiment 'digits/cnn'\n")
  for word in ("--model_dir: must not contain any of", "Did you mean 'trainer.train_steps'"):
    assert word in err


@pytest.mark.parametrize("mode", ["eval", "continuous_eval", "replay"])
def test_a_mode_that_reads_a_run_must_be_told_its_folder(call, mode):
  code, out, err = call("--experiment=digits/cnn", f"--mode={mode}")
  assert (code, out) == (2, "")
  assert "--model_dir: must be given: the folder of the run" in err


def test_a_checkpoint_can_be_evaluated_without_a_folder(call, runner):
  code, out, _ = call("--experiment=digits/cnn", "--mode=eval", "--checkpoint=x", "--quiet")
  assert (code, json.loads(out)["step"]) == (0, 4)


def test_an_experiment_alone_is_trained_and_evaluated_without_a_folder(call, runner):
  assert call("--experiment=digits/cnn", "--quiet") == (0, "", "")
  assert (runner[0][1]["mode"], runner[0][1]["model_dir"]) == ("train_and_eval", "")


def test_what_the_user_wants_kept_is_refused_without_a_folder_before_anything_starts(call, runner):
  code, _, err = call("--experiment=digits/cnn", "--params_override=trainer.checkpoints_at=[5]")
  assert code == 2 and runner == []
  assert "trainer.checkpoints_at: needs checkpoints, but there is no --model_dir." in err


def test_a_runner_is_named_by_a_flag(call, runner):
  call("--experiment=digits/cnn", "--runner=my_pkg.sweeps:sweep", "--model_dir=x", "--quiet")
  loaded = runner[0][0]
  assert loaded.config.trainer.runner == "my_pkg.sweeps:sweep"
  assert str(loaded.origin("trainer.runner")) == "--runner"


@pytest.mark.parametrize(
  ("arguments", "text"),
  [
    (["--experiment=digits/cn", "--print_config"], "no experiment 'digits/cn'"),
    (["--mode=tarin"], "value should be one of"),
    (["--mode=continuous_train_and_eval"], "value should be one of"),
    (["--experimant=x"], "Did you mean: experiment"),
    (["digits/cnn"], "digits/cnn: is not a flag"),
    (["--print_config"], "--experiment: must be given"),
    (["--list_experiments", "--experiment_module=nowhere"], "no module 'nowhere'"),
    (
      ["--experiment=digits/cnn", "--config_file=no.yaml", "--print_config"],
      "cannot read 'no.yaml'",
    ),
  ],
)
def test_every_config_error_is_one_clean_text_and_exit_code_2(call, arguments, text):
  code, out, err = call(*arguments)
  assert (code, out) == (2, "")
  assert err.startswith("ConfigError: ")
  assert text in err


def test_a_run_gets_its_config_and_flags(call, runner):
  arguments = ["--experiment=digits/cnn", "--mode=train", "--model_dir=somewhere"]
  code, out, err = call(*arguments, "--params_override=trainer.train_steps=1e1")
  assert (code, out) == (0, "")
  loaded, given = runner[0]
  assert loaded.config.trainer.train_steps == 10
  assert given == {"mode": "train", "model_dir": "somewhere", "checkpoint": None, **DEFAULTS, "quiet": False}
  assert "trainer.train_steps = 10" in err
  assert "max_to_keep" not in err


def test_quiet_says_nothing(call, runner):
  arguments = ["--experiment=digits/cnn", "--mode=train", "--model_dir=x", "--checkpoint=y", "--quiet"]
  assert call(*arguments) == (0, "", "")
  assert runner[0][1] == {
    "mode": "train",
    "model_dir": "x",
    "checkpoint": "y",
    **DEFAULTS,
    "quiet": True,
  }


def test_a_replay_prints_what_the_step_did_with_the_config_of_the_folder(call, runner, tmp_path):
  code, out, _ = call("--experiment=digits/mlp", "--print_config", "--params_override=trainer.train_steps=77")
  assert code == 0 and "77" in out
  folder = tmp_path / "run"
  folder.mkdir()
  (folder / "params.yaml").write_text("experiment: digits/mlp\ntrainer:\n  train_steps: 77\n")
  code, out, err = call("--mode=replay", f"--model_dir={folder}", "--replay_step=5", "--quiet")
  assert (code, out, err) == (0, "step 5 again\n", "")
  assert runner[0][0].config.trainer.train_steps == 77


def test_a_step_to_replay_is_for_the_mode_that_replays(call):
  code, _, err = call("--experiment=digits/mlp", "--mode=train", "--model_dir=x", "--replay_step=5")
  assert code == 2 and "--replay_step: is for --mode=replay." in err


def test_a_check_for_a_tpu_needs_no_folder_and_its_code_says_what_was_found(call, runner):
  arguments = ["--experiment=digits/mlp", "--mode=check_tpu", "--quiet"]
  assert call(*arguments) == (0, "digits/mlp: Report(is_clean=True)\n", "")
  assert runner[0][1]["model_dir"] == ""
  assert call(*arguments, "--params_override=trainer.train_steps=13")[:2] == (2, "digits/mlp: Report(is_clean=False)\n")


def test_steps_that_run_line_by_line_cannot_be_checked_for_a_tpu(call):
  arguments = ["--experiment=digits/mlp", "--mode=check_tpu", "--params_override=runtime.run_eagerly=true"]
  code, _, err = call(*arguments)
  assert code == 2 and "runtime.run_eagerly: must be off to check for a TPU" in err


def test_an_evaluation_prints_its_result_as_one_line_for_programs(call, runner):
  code, out, err = call("--experiment=digits/cnn", "--mode=eval", "--model_dir=x", "--quiet")
  assert (code, err) == (0, "")
  assert json.loads(out) == {"step": 4, "metrics": {"accuracy": 0.5}}


@pytest.mark.parametrize(
  ("ending", "code", "text"),
  [
    ("diverge", 3, "TrainingDiverged: at step 3: training_loss is nan"),
    ("stop", 42, "stopped by SIGTERM after step 3"),
    ("ctrl-c", 130, "interrupted"),
  ],
)
def test_t61_a_run_that_ends_early_exits_with_its_code(call, runner, ending, code, text):
  arguments = ["--experiment=digits/cnn", "--mode=train", "--model_dir=x", f"--checkpoint={ending}"]
  found, _, err = call(*arguments, "--quiet")
  assert found == code
  assert text in err


def test_params_yaml_alone_starts_the_same_run(call, runner, tmp_path):
  call("--experiment=digits/cnn", "--mode=train", "--model_dir=x", "--params_override=runtime.seed=9")
  path = tmp_path / "params.yaml"
  path.write_text(runner[0][0].to_yaml())
  call(f"--config_file={path}", "--mode=train", "--model_dir=y")
  assert runner[1][0].config == runner[0][0].config
  assert runner[1][0].name == "digits/cnn"


def test_repeatable_flags_and_the_module_run_as_a_program(tmp_path):
  arguments = [
    "--experiment=digits/mlp",
    "--params_override=trainer.train_steps=1",
    "--params_override=trainer.train_steps=2",
    "--gin_params=trainer.steps_per_loop = 1",
    "--tpu=local",
    "--print_config",
  ]
  done = subprocess.run([sys.executable, "-m", "official_trainer.train", *arguments], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  lines = {line.partition("#")[0].strip(): line.partition("#")[2] for line in done.stdout.splitlines()}
  assert lines["trainer.train_steps = 2"].strip() == "--params_override"
  assert lines["trainer.steps_per_loop = 1"].strip() == "gin"
  assert lines["runtime.tpu = 'local'"].strip() == "--tpu"


def test_importing_the_module_twice_defines_no_flag_twice():
  values = flags.FlagValues()
  train.define_flags(values)
  with pytest.raises(flags.DuplicateFlagError):
    train.define_flags(values)
  assert "model_dir" not in flags.FlagValues()


def test_a_replay_in_a_folder_without_a_run_says_what_to_give(call, tmp_path):
  code, _, err = call("--mode=replay", f"--model_dir={tmp_path}")
  assert code == 2
  assert "params.yaml is not there. Give the folder of a run, or its config by --config_file." in err


def test_an_export_has_the_config_of_its_run_and_prints_one_line(call, runner, tmp_path):
  code, _, err = call("--mode=export", f"--model_dir={tmp_path}")
  assert (code, "params.yaml is not there" in err) == (2, True)
  (tmp_path / "params.yaml").write_text("experiment: digits/mlp\ntrainer: {train_steps: 7}\n", "utf-8")
  code, out, err = call(
    "--mode=export", f"--model_dir={tmp_path}", "--params_override=trainer.export.formats=[weights_h5]"
  )
  assert (code, err) == (0, "")
  assert json.loads(out) == {"folder": "runs/a/export/4", "step": 4, "weights": "raw"}
  loaded, arguments = runner[-1]
  assert (loaded.name, loaded.config.trainer.train_steps) == ("digits/mlp", 7)
  assert loaded.config.trainer.export.formats == ("weights_h5",)
  assert arguments["mode"] == "export"
