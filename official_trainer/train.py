"""The command line: `python -m official_trainer.train`, installed as `official-trainer`.

    python -m official_trainer.train --experiment=digits/cnn --mode=train_and_eval \\
      --model_dir=runs/digits

TensorFlow is imported when the run starts: help, lists, configs and their errors come at once.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from absl import flags

from official_trainer import errors, registry
from official_trainer.config import checks, describe, loading, outputs
from official_trainer.errors import ConfigError, Problem

_BEGAN = time.monotonic()
_NAME = "official-trainer"
_OF_A_RUN = (checks.REPLAY, checks.EXPORT)  # Modes that need no other config than that of the folder's run.
_HELP_FLAGS = ("--help", "-help", "-h", "-?", "--helpshort", "--helpfull")

_EXAMPLES = """\
  Train and evaluate:   --experiment=digits/cnn --mode=train_and_eval --model_dir=runs/digits
  Just try it:          --experiment=digits/cnn                 (train_and_eval, nothing is kept)
  Continue:             the same command again
  Change settings:      --params_override=trainer.train_steps=500,runtime.seed=1
  Start the same run:   --config_file=runs/digits/params.yaml --mode=train --model_dir=runs/again
  See what would run:   --experiment=digits/cnn --print_config
  Look at a step again: --mode=replay --model_dir=runs/digits --replay_step=950
  Ready for a TPU?      --experiment=digits/cnn --mode=check_tpu
  A model to serve:     --mode=export --model_dir=runs/digits
"""


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of the program. Called once, by `console_main`, not by importing."""
  flags.DEFINE_string(
    "experiment",
    None,
    "Name of a registered experiment. May be left out when a config file names it.",
    flag_values=values,
  )
  flags.DEFINE_enum(
    "mode", None, list(checks.MODES), f"What to do. Left out: {checks.DEFAULT_MODE}.", flag_values=values
  )
  flags.DEFINE_string(
    "model_dir",
    None,
    "Folder of the run: checkpoints, summaries, history. A run that is in it is continued. Left out: nothing is kept.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    "config_file",
    [],
    "YAML or JSON file with settings; may be given several times, later files win.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    "params_override",
    [],
    "Settings over all files: 'a.b=c,d.e=f', YAML or JSON text, or a file of it. Repeatable.",
    flag_values=values,
  )
  flags.DEFINE_multi_string("gin_file", [], "Gin file. Repeatable.", flag_values=values)
  flags.DEFINE_multi_string(
    "gin_params",
    [],
    "Gin binding, e.g. 'trainer.train_steps = 10'. Repeatable.",
    flag_values=values,
  )
  flags.DEFINE_string("tpu", None, "Name or address of a TPU: sets runtime.tpu.", flag_values=values)
  flags.DEFINE_string(
    "tf_data_service",
    None,
    "Address of a tf.data service for the training data.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "runner",
    None,
    "What runs the experiment in place of the loop: a registered name or 'module:function'. Sets trainer.runner.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    "experiment_module",
    [],
    "Module of yours to import, so that its experiments are known. Repeatable.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "checkpoint",
    None,
    "Checkpoint to evaluate, export or start from, instead of the newest one in model_dir.",
    flag_values=values,
  )
  flags.DEFINE_list(
    "allow_config_change",
    [],
    "Keys in which a run that is continued may differ from its last start, e.g. trainer.train_steps.",
    flag_values=values,
  )
  flags.DEFINE_list(
    "allow_checkpoint_mismatch",
    [],
    "Variables that may differ between the model and the checkpoint, by the names that the error lists; they keep "
    "their initial values.",
    flag_values=values,
  )
  flags.DEFINE_integer(
    "replay_step",
    None,
    "With --mode=replay: the update to compute again, by the step after it. Left out: the one that the newest crash "
    "bundle of model_dir is about.",
    flag_values=values,
  )
  flags.DEFINE_bool("list_experiments", False, "Print the names and stop.", flag_values=values)
  flags.DEFINE_bool("print_config", False, "Print every value with its origin and stop.", flag_values=values)
  flags.DEFINE_bool("quiet", False, "Print warnings and errors only.", flag_values=values)


def main(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> int:
  """Runs the program.

  Args:
    argv: the command line, the program's name first.
    values: where the flags are defined and kept; libraries read the global ones.

  Returns:
    The exit code, see `errors.ExitCode`.
  """
  if "print_config" not in values:
    define_flags(values)
  if any(arg in _HELP_FLAGS for arg in argv[1:]):
    print(help_text(values, full="--helpfull" in argv))
    return errors.DONE
  try:
    rest = values(list(argv))[1:]
  except flags.Error as error:
    return _fail(ConfigError.of("flags", f"{error}\n--help lists all flags."))
  try:
    if rest:
      raise ConfigError.of(rest[0], "is not a flag. All arguments are of the form --name=value.")
    return _run(values)
  except (
    ConfigError,
    errors.BrokenCheckpoint,
    errors.CheckpointMismatch,
    errors.ExportRefused,
    errors.TrainingDiverged,
    errors.Preempted,
    errors.PeerLost,
    errors.ReplicasDiffer,
  ) as error:
    return _fail(error)
  except errors.NotWritten as error:
    return _fail(error, _what_is_left(values))
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return errors.INTERRUPTED


def console_main() -> None:
  """Runs the program with the arguments of the process, and exits with its code."""
  # Until the run has begun, which saves what it has reached, there is nothing to lose by leaving at once.
  signal.signal(signal.SIGTERM, _leave_at_once)
  sys.exit(int(main(sys.argv)))


def _leave_at_once(number: int, frame: FrameType | None) -> None:
  print("SIGTERM before the run began, or after its end: ending at once.", file=sys.stderr, flush=True)
  os._exit(errors.RESTART)


def help_text(values: flags.FlagValues, *, full: bool = False) -> str:
  """Returns the help: this program's flags, or with `full` those of all imported libraries too."""
  ours = flags.FlagValues()
  define_flags(ours)
  text = values.get_help() if full else ours.get_help()
  lines = [line for line in text.splitlines() if not line.endswith(("train.py:", "absl.flags:"))]
  return f"usage: {_NAME} --name=value ...\n\n{_EXAMPLES}\nFlags:\n" + "\n".join(lines).strip("\n")


def _run(values: flags.FlagValues) -> int:
  if values.list_experiments:
    registry.import_modules(values.experiment_module)
    print("\n".join(registry.list_experiments()))
    return errors.DONE
  loaded = _load(values)
  if values.print_config:
    describe.print_rows(loaded, sys.stdout)
    return errors.DONE
  mode = values.mode or checks.DEFAULT_MODE
  if not values.quiet and mode not in _OF_A_RUN:
    print(f"{loaded.name}: settings that are not defaults", file=sys.stderr)
    describe.print_rows(loaded, sys.stderr, changed_only=True)
    sys.stderr.flush()

  # TensorFlow says on a machine without a GPU, too, what it failed to find; set the variable to hear it.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/proc/driver/nvidia") else "3")
  # TensorFlow is imported here, not before.
  from official_trainer.runner import Runner

  runner = Runner(
    loaded,
    mode=mode,
    model_dir=values.model_dir or "",
    checkpoint=values.checkpoint,
    allow_config_change=values.allow_config_change,
    allow_checkpoint_mismatch=values.allow_checkpoint_mismatch,
    quiet=values.quiet,
    began=_BEGAN,
  )
  if mode == checks.REPLAY:
    print(runner.replay(values.replay_step))
    return errors.DONE
  if mode == checks.CHECK_TPU:
    report = runner.check_tpu()
    print(f"{loaded.name}: {report}")
    return errors.DONE if report.is_clean else errors.CONFIG
  if mode == checks.EXPORT:
    exported = runner.export()
    print(json.dumps({"folder": exported.folder, "step": exported.step, "weights": exported.weights}, sort_keys=True))
    return errors.DONE
  result = runner.run()
  if mode == "eval" and not loaded.config.trainer.runner:
    # The one mode whose product is numbers: one line for programs, on standard output.
    print(json.dumps({"step": result.step, "metrics": result.metrics}, sort_keys=True))
  return errors.DONE


def _load(values: flags.FlagValues) -> loading.LoadedExperiment:
  """Loads the config; missing flags and wrong settings are reported together."""
  missing = []
  config_files = values.config_file
  if values.mode in _OF_A_RUN and values.model_dir and not (values.experiment or config_files):
    # What was run is what is looked at again, or exported.
    config_files = [os.path.join(values.model_dir, "params.yaml")]
    if not os.path.exists(config_files[0]):
      message = f"{config_files[0]} is not there. Give the folder of a run, or its config by --config_file."
      raise ConfigError.of("--model_dir", message)
  if values.replay_step is not None and values.mode != checks.REPLAY:
    missing.append(Problem("--replay_step", "is for --mode=replay."))
  mode = values.mode or checks.DEFAULT_MODE
  if values.model_dir and not values.print_config:
    missing += checks.model_dir_problems(values.model_dir)
  try:
    loaded = loading.load(
      experiment=values.experiment,
      config_files=config_files,
      gin_files=values.gin_file,
      gin_params=values.gin_params,
      params_override=values.params_override,
      tpu=values.tpu,
      tf_data_service=values.tf_data_service,
      runner=values.runner,
      experiment_modules=values.experiment_module,
      mode=values.mode if values.print_config else mode,
    )
  except ConfigError as error:
    raise ConfigError([*missing, *error.problems], error.experiment) from error
  if not (values.model_dir or values.print_config or loaded.config.trainer.runner):
    missing += outputs.folder_problems(loaded.config, mode, has_checkpoint=bool(values.checkpoint))
    missing += outputs.problems(loaded.config, loaded.origin, has_folder=False) if mode in checks.TRAINING_MODES else ()
  if missing:
    raise ConfigError(missing, loaded.name)
  return loaded


def _what_is_left(values: flags.FlagValues) -> str:
  """Says from where the same command will go on, once the run can write again."""
  from official_trainer.checkpoint.manifest import committed_steps  # TensorFlow is there: it failed to write.

  steps = committed_steps(values.model_dir or "")
  left = f"The newest checkpoint is that of step {steps[-1]}." if steps else "No checkpoint was saved yet."
  return f" {left} Free space, or make the folder writable, and give the same command again."


def _fail(error: BaseException, then: str = "") -> int:
  print(f"{type(error).__name__}: {error}{then}", file=sys.stderr)
  return errors.exit_code(error)


if __name__ == "__main__":
  console_main()
