"""What must fit together in a config. Pure functions that return every problem they see."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer.config import assembly, checks_evaluation, hints, steps
from official_trainer.config.checks_export import best_export_problems, export_problems, writer_problems
from official_trainer.config.checks_initialisation import initialisation_problems
from official_trainer.config.checks_inspection import inspection
from official_trainer.config.checks_updates import update_problems
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.fields import OneOf
from official_trainer.errors import Problem

TRAINING_MODES = ("train", "train_and_eval", "train_and_post_eval")
CHECK_TPU = "check_tpu"
EVALUATING_MODES = ("eval", "train_and_eval", "train_and_post_eval", "continuous_eval", CHECK_TPU)
RUN_MODES = ("train", "eval", "train_and_eval", "train_and_post_eval", "continuous_eval")
REPLAY = "replay"
EXPORT = "export"
DEFAULT_MODE = "train_and_eval"
MODES = (*RUN_MODES, EXPORT, REPLAY, CHECK_TPU)
UPDATING_MODES = (*TRAINING_MODES, REPLAY, CHECK_TPU)
"""Those that do updates, and so need an optimizer and the seed of the run."""

_CLUSTER_STRATEGIES = ("multi_worker_mirrored", "parameter_server")
_TRAINER = "trainer"
_OPTIMIZATION = "trainer.optimizer_config"


def model_dir_problems(path: str) -> list[Problem]:
  """Returns what keeps `path` from being the folder of a run."""
  if not any(character in path for character in "*?[\\"):
    return []
  message = (
    f"must not contain any of * ? [ \\, got {path!r}.\n"
    "TensorFlow takes such a name for a pattern, and would not find the checkpoints again."
  )
  return [Problem("--model_dir", message)]


def problems(config: ExperimentConfig, mode: str | None = None) -> list[Problem]:
  """Returns what does not fit together.

  Args:
    config: an experiment whose single values are valid.
    mode: how it is going to be run, or None when that is not known: then what only matters in some
      mode is not looked at.

  What compares numbers of steps is looked at once every duration has one: where that needs the size of the data, the
  runner asks again.
  """
  checks: tuple[Callable[[ExperimentConfig], Iterator[Problem]], ...] = (
    _kept_names,
    _choices,
    _schedules,
    _averaging,
    update_problems,
    _loops,
    _never,
    _first_loop,
    _classes,
    _best_checkpoints,
    inspection,
    export_problems,
    writer_problems,
    _devices,
    _cluster,
    _data,
    _task,
    checks_evaluation.evaluation_sets,
    checks_evaluation.continued_evaluation,
    checks_evaluation.early_ends,
    initialisation_problems,
  )
  resolved, found = steps.resolve_early(config)
  if resolved is not None:
    config = resolved
  else:
    checks = tuple(check for check in checks if check in _WITHOUT_STEPS)
  found += [problem for check in checks for problem in check(config)]
  if mode is not None:
    found += _mode_steps(config, mode) if resolved is not None else ()
    found += _mode(config, mode)
  return found


def _kept_names(config: ExperimentConfig) -> Iterator[Problem]:
  """Names kept for Model Garden's configs, whose other values would do nothing."""
  for path, field, value in _fields(config, ""):
    reason = field.metadata.get("only_default")
    if reason and value != field.default:
      yield Problem(
        path,
        f"has no effect here and must stay {hints.shown(field.default)}, got {hints.shown(value)}.\n{reason}",
      )


def _choices(config: ExperimentConfig) -> Iterator[Problem]:
  """A choice of the user's own that names no field."""
  for path, _, value in _fields(config, ""):
    if isinstance(value, OneOf):
      kinds = [name for name in hints.fields_of(type(value)) if name != "type"]
      if value.type is not None and value.type not in kinds:
        yield Problem(f"{path}.type", f"must be one of {', '.join(kinds)}, got {value.type!r}.")


def _schedules(config: ExperimentConfig) -> Iterator[Problem]:
  """Values that a chosen kind cannot do without, and lists that must fit each other."""
  optimization = config.trainer.optimizer_config
  for name in ("learning_rate", "warmup"):
    choice: OneOf = getattr(optimization, name)
    chosen = choice.get()
    if chosen is None:
      continue
    path = f"{_OPTIMIZATION}.{name}.{choice.type}"
    for key, field in hints.fields_of(type(chosen)).items():
      if field.metadata.get("text", "").endswith("Required.") and getattr(chosen, key) is None:
        yield Problem(f"{path}.{key}", f"must be set when '{choice.type}' is chosen.")
  rate = optimization.learning_rate
  if rate.type in ("stepwise", "step_cosine_with_offset"):
    chosen = rate.get()
    more = 1 if rate.type == "stepwise" else 0
    bounds, levels = chosen.boundaries or (), chosen.values or ()
    path = f"{_OPTIMIZATION}.learning_rate.{rate.type}"
    if bounds and levels and len(levels) != len(bounds) + more:
      wanted = f"{len(bounds) + more} for {len(bounds)} boundaries"
      yield Problem(f"{path}.values", f"must have {wanted}, got {len(levels)}.")
    if any(later <= earlier for earlier, later in zip(bounds, bounds[1:], strict=False)):
      yield Problem(f"{path}.boundaries", f"must rise, got {list(bounds)}.")
  sgd = optimization.optimizer
  if sgd.type == "sgd" and sgd.sgd.decay and not optimization.legacy:
    message = f"exists only in the legacy optimizer, got {sgd.sgd.decay!r}.\n"
    hint = f"Set '{_OPTIMIZATION}.legacy=true', or use an exponential learning rate."
    yield Problem(f"{_OPTIMIZATION}.optimizer.sgd.decay", message + hint)
  if optimization.optimizer.type in ("slide", "adafactor"):
    message = f"has no public optimizer for '{optimization.optimizer.type}', only its settings.\n"
    yield Problem(f"{_OPTIMIZATION}.optimizer.type", message + "Use 'adafactor_keras' or another one.")


def _loops(config: ExperimentConfig) -> Iterator[Problem]:
  """Loops inside TensorFlow, which Orbit refuses when it is too late."""
  trainer = config.trainer
  for half in ("train", "eval"):
    if getattr(trainer, f"{half}_tf_while_loop") and not getattr(trainer, f"{half}_tf_function"):
      message = f"needs {half}_tf_function: a loop inside TensorFlow is a graph. Set both, or neither."
      yield Problem(f"{_TRAINER}.{half}_tf_while_loop", message)
  if trainer.eval_tf_while_loop and trainer.validation_steps == -1:
    message = "cannot run to the end of the data; set validation_steps to a number of batches."
    yield Problem(f"{_TRAINER}.eval_tf_while_loop", message)


def _never(config: ExperimentConfig) -> Iterator[Problem]:
  """Steps after the last one, at which nothing would ever happen."""
  trainer = config.trainer
  last = trainer.train_steps
  if not last:
    return
  late = [step for step in trainer.checkpoints_at if step > last]
  if late:
    yield Problem(f"{_TRAINER}.checkpoints_at", f"must not be after trainer.train_steps ({last}), got {late}.")
  if trainer.recovery_begin_steps > last:
    message = f"must not be after trainer.train_steps ({last}), got {trainer.recovery_begin_steps}.\n"
    yield Problem(f"{_TRAINER}.recovery_begin_steps", message + "loss_upper_bound would never be enforced.")
  num_batches = last
  for first, end in sorted(config.task.train_data.skip_steps):
    if first >= num_batches:
      yield Problem("task.train_data.skip_steps", f"[{first}, {end}] is after the last batch of the run.")
    num_batches += end - first


def _first_loop(config: ExperimentConfig) -> Iterator[Problem]:
  trainer = config.trainer
  if trainer.evaluate_first_loop and trainer.first_loop_steps is None:
    message = "says what to do after trainer.first_loop_steps, which is not set. Set both, or neither."
    yield Problem(f"{_TRAINER}.evaluate_first_loop", message)


def _classes(config: ExperimentConfig) -> Iterator[Problem]:
  """Names of classes and functions that cannot be imported, whatever there is."""
  for name, kind in (("trainer_class", "Class"), ("runner", "function")):
    written = getattr(config.trainer, name)
    if written and ":" not in written and name == "runner":
      continue  # A registered name.
    module, colon, last = written.partition(":")
    if written and not (colon and last.isidentifier() and all(map(str.isidentifier, module.split(".")))):
      yield Problem(f"{_TRAINER}.{name}", f"must be 'module:{kind}', got '{written}'.")


def _averaging(config: ExperimentConfig) -> Iterator[Problem]:
  ema = config.trainer.optimizer_config.ema
  steps = config.trainer.train_steps
  if ema is not None and steps and ema.start_step >= steps:
    message = f"must be less than trainer.train_steps ({steps}), got {ema.start_step}.\n"
    yield Problem(f"{_OPTIMIZATION}.ema.start_step", message + "Averaging would never start.")


def _best_checkpoints(config: ExperimentConfig) -> Iterator[Problem]:
  trainer = config.trainer
  rules = [
    (
      f"{_TRAINER}.best_checkpoint_export_subdir",
      f"{_TRAINER}.best_checkpoint_eval_metric",
      trainer.best_checkpoint_export_subdir,
      trainer.best_checkpoint_eval_metric,
    )
  ]
  for index, rule in enumerate(trainer.best_checkpoints):
    path = f"{_TRAINER}.best_checkpoints.{index}"
    rules.append((f"{path}.subdir", f"{path}.eval_metric", rule.subdir, rule.eval_metric))
    if not rule.subdir and not rule.eval_metric:
      yield Problem(path, "must have a subdir and an eval_metric.")
  folders: dict[str, str] = {}
  for folder_path, metric_path, written, metric in rules:
    folder = os.path.normpath(written) if written and "://" not in written else written
    if folder and not metric:
      yield Problem(metric_path, f"must name a metric, because {folder_path} is '{folder}'.")
    if metric and not folder:
      yield Problem(folder_path, f"must name a folder, because {metric_path} is '{metric}'.")
    if folder and folder in folders:
      yield Problem(folder_path, f"is '{folder}', which {folders[folder]} uses already.")
    if folder.startswith(("/", "..")) or folder == "." or "://" in folder:
      yield Problem(folder_path, f"must be a folder inside model_dir, got '{folder}'.")
    if folder in ("train", trainer.validation_summary_subdir):
      yield Problem(folder_path, f"is '{folder}', the folder of summaries. Choose another name.")
    folders.setdefault(folder, folder_path)


def _devices(config: ExperimentConfig) -> Iterator[Problem]:
  runtime = config.runtime
  if runtime.num_gpus and runtime.num_virtual_devices:
    message = f"splits the CPU, but runtime.num_gpus is {runtime.num_gpus}. Set one of them."
    yield Problem("runtime.num_virtual_devices", message)
  if runtime.num_virtual_devices and runtime.distribution_strategy in _CLUSTER_STRATEGIES:
    message = (
      f"has no effect under '{runtime.distribution_strategy}': a CPU is one replica of a cluster. Leave it unset."
    )
    yield Problem("runtime.num_virtual_devices", message)


def _cluster(config: ExperimentConfig) -> Iterator[Problem]:
  """Who is in the cluster, as far as the config says it."""
  runtime = config.runtime
  hosts = [host.strip() for host in (runtime.worker_hosts or "").split(",") if host.strip()]
  if hosts and runtime.cluster_resolver is not None:
    message = (
      f"describes a cluster, and so does runtime.cluster_resolver ('{runtime.cluster_resolver}'). Set one of them."
    )
    yield Problem("runtime.worker_hosts", message)
  if hosts and not 0 <= runtime.task_index < len(hosts):
    message = f"must say which of the {len(hosts)} worker_hosts this process is, from 0, got {runtime.task_index}."
    yield Problem("runtime.task_index", message)
  if not hosts and runtime.task_index >= 0:
    yield Problem("runtime.task_index", "is the place of this process among runtime.worker_hosts, which are not given.")
  for host in hosts:
    name, colon, port = host.rpartition(":")
    if not (name and colon and port.isdigit() and 0 < int(port) < 65536):
      yield Problem("runtime.worker_hosts", f"must be of the form 'host:port,host:port', got '{host}'.")
  for host in sorted({host for host in hosts if hosts.count(host) > 1}):
    yield Problem("runtime.worker_hosts", f"names '{host}' more than once.")
  if runtime.cluster_resolver == "kubernetes" and not runtime.cluster_labels:
    yield Problem("runtime.cluster_labels", "must select the workers' pods when cluster_resolver is 'kubernetes'.")


def _data(config: ExperimentConfig) -> Iterator[Problem]:
  named = {f"evaluation_sets.{name}": data for name, data in config.task.evaluation_sets.items()}
  for name, data in {
    "train_data": config.task.train_data,
    "validation_data": config.task.validation_data,
    **named,
  }.items():
    if data.input_path and data.tfds_name:
      message = f"must be empty when task.{name}.tfds_name is given, got {data.input_path!r}."
      yield Problem(f"task.{name}.input_path", message)
    if data.tfds_name and not data.tfds_split:
      message = f"must name a split of '{data.tfds_name}', e.g. 'train' or 'test'."
      yield Problem(f"task.{name}.tfds_split", message)
    yield from _data_service(f"task.{name}", data)
  for first, end in config.task.train_data.skip_steps:
    if first >= end:
      yield Problem("task.train_data.skip_steps", f"needs first < end in each pair, got [{first}, {end}].")
  if config.task.validation_data.skip_steps:
    message = "has no effect: an evaluation takes every example once."
    yield Problem("task.validation_data.skip_steps", message)


def _data_service(path: str, data: Any) -> Iterator[Problem]:
  """Settings of a tf.data service that would do nothing, or lack another one."""
  sharing = "enable_shared_tf_data_service_between_parallel_trainers"
  if not data.enable_tf_data_service:
    idle = ("tf_data_service_address", "tf_data_service_job_name", "trainer_id", sharing)
    for name in (*idle, "apply_tf_data_service_before_batching"):
      if getattr(data, name):
        yield Problem(f"{path}.{name}", f"has no effect unless {path}.enable_tf_data_service is true.")
    return
  if getattr(data, sharing):
    for name in ("tf_data_service_address", "tf_data_service_job_name", "trainer_id"):
      if not getattr(data, name):
        yield Problem(f"{path}.{name}", f"must be set where {path}.{sharing} is true.")
  elif data.trainer_id:
    yield Problem(f"{path}.trainer_id", f"has no effect unless {path}.{sharing} is true.")


def _task(config: ExperimentConfig) -> Iterator[Problem]:
  written = config.task.task_class
  module, colon, name = written.partition(":")
  if written and not (colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))):
    yield Problem("task.task_class", f"must be 'module:Class', got '{written}'.")


def _mode(config: ExperimentConfig, mode: str) -> Iterator[Problem]:
  if mode not in MODES:
    yield Problem("--mode", f"must be one of {', '.join(MODES)}, got '{mode}'.")
  yield from checks_evaluation.ends_in_mode(config, mode)
  if mode == CHECK_TPU and config.runtime.run_eagerly:
    yield Problem("runtime.run_eagerly", "must be off to check for a TPU, which runs compiled steps only.")
  if mode in TRAINING_MODES and mode in EVALUATING_MODES:
    yield from best_export_problems(config)
  if mode in UPDATING_MODES:
    for name in ("optimizer", "learning_rate"):
      if getattr(config.trainer.optimizer_config, name).type is None:
        yield Problem(f"{_OPTIMIZATION}.{name}.type", "must be chosen to train.")


def _mode_steps(config: ExperimentConfig, mode: str) -> Iterator[Problem]:
  if mode in TRAINING_MODES and config.trainer.train_steps < 1:
    yield Problem("trainer.train_steps", f"must be at least 1 to train, got {config.trainer.train_steps}.")
  if mode in EVALUATING_MODES and config.trainer.validation_steps == 0:
    message = "0 would evaluate nothing. Use -1 for every example once, or --mode=train."
    yield Problem("trainer.validation_steps", message)


_WITHOUT_STEPS = (
  _kept_names,
  _choices,
  update_problems,
  _loops,
  _first_loop,
  _classes,
  _best_checkpoints,
  export_problems,
  writer_problems,
  _devices,
  _cluster,
  _data,
  _task,
  checks_evaluation.evaluation_sets,
  initialisation_problems,
)
"""Those that compare no numbers of steps, and so need not wait for them."""


def _fields(config: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
  """Yields (dotted key, field, value) of every field, groups included."""
  for name, field in hints.fields_of(type(config)).items():
    path = assembly.join(prefix, name)
    value = getattr(config, name)
    yield path, field, value
    if hints.is_group(type(value)):
      yield from _fields(value, path)
    elif isinstance(value, list | tuple | Mapping):
      for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if hints.is_group(type(item)):
          yield from _fields(item, f"{path}.{key}")
