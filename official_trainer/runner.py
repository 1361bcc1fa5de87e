"""From a loaded config to a finished run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import NoReturn

import tensorflow as tf

from official_trainer import runners
from official_trainer.atomic import write_text
from official_trainer.checkpoint.best_rules import BestCheckpoints, best_metric_names, build_best_checkpoints
from official_trainer.checkpoint.finite import FiniteCheck
from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.config import checks, drift, gin_bindings, outputs
from official_trainer.config.checks import CHECK_TPU, EVALUATING_MODES, EXPORT, REPLAY, TRAINING_MODES, UPDATING_MODES
from official_trainer.config.loading import LoadedExperiment
from official_trainer.crash import CrashBundle, newest_bundle
from official_trainer.data.service_address import require_service
from official_trainer.distribute.cluster import Cluster, Role
from official_trainer.distribute.coordinator_note import noted_for_servers
from official_trainer.distribute.initial_values import computed_on_host
from official_trainer.distribute.lost import told_apart
from official_trainer.distribute.parameter_servers import is_asynchronous
from official_trainer.distribute.peers import Peers, build_peers
from official_trainer.distribute.resolvers import find_cluster
from official_trainer.distribute.scratch import written_folder
from official_trainer.distribute.server import serve
from official_trainer.distribute.strategy import build_strategy, configure_devices, set_precision
from official_trainer.errors import ConfigError, ExitCode, NotWritten, PeerLost, Preempted, Problem
from official_trainer.export.exporter import Exported
from official_trainer.initialisation import require_sources, require_statistics
from official_trainer.inspect.tpu_check import TpuReport, check_tpu
from official_trainer.notices import NOTICES, stop_on_notice
from official_trainer.random_state import draw_seed, seed_everything
from official_trainer.run import lengths
from official_trainer.run.batch_note import batch_note
from official_trainer.run.data_size import DataSize
from official_trainer.run.export import export_checkpoint
from official_trainer.run.named_classes import require_keras_model, resolve_task_class, resolve_trainer_class
from official_trainer.run.replay import Replay, StepReport
from official_trainer.run.result import RunResult
from official_trainer.run.session import Session
from official_trainer.run.written import file_writers, manifest_facts
from official_trainer.run_record import RunRecord, load_record, settled_seed
from official_trainer.signals import stop_on_signals
from official_trainer.stop import StopRequest
from official_trainer.task import Task
from official_trainer.timing.data_wait import DataWait, NoDataWait, build_data_wait
from official_trainer.timing.ledger import TimeLedger
from official_trainer.trainer import Trainer
from official_trainer.writers.base import Writer, WriterGroup
from official_trainer.writers.chosen import chosen_writers, missing_writers
from official_trainer.writers.console import Console

_OPTIMIZER_KEYS = ("trainer.optimizer_config.", "trainer.recovery_learning_rate_factor")


class Runner:
  """Runs one experiment in one mode: `Runner(load(experiment="digits/cnn"), mode="train", model_dir="runs/a").run()`.

      seed, precision, devices -> strategy -> in its scope: task, model, optimizer, trainer -> Session

  Users who build parts differently override one of the `build_` methods; those with a trainer of their own name it in
  `trainer.trainer_class`, or set `trainer_class`.
  """

  trainer_class: type[Trainer] = Trainer

  def __init__(
    self,
    loaded: LoadedExperiment,
    *,
    mode: str,
    model_dir: str | None = None,
    checkpoint: str | None = None,
    allow_config_change: Sequence[str] = (),
    allow_checkpoint_mismatch: Sequence[str] = (),
    quiet: bool = False,
    began: float | None = None,
  ):
    """Stores its arguments.

    Args:
      loaded: the config, from `config.loading.load`.
      mode: one of config.checks.MODES.
      model_dir: the run's folder. A run that was stopped goes on from it. Empty: nothing is kept, for modes that train,
        `check_tpu`, and an evaluation of `checkpoint`.
      checkpoint: what to evaluate, or what a fresh run starts from; a prefix or a folder.
      allow_config_change: keys in which a run that is continued may differ from its last start.
      allow_checkpoint_mismatch: variables that may differ between the model and the checkpoint that is read.
      quiet: whether only warnings are shown.
      began: when the process began, by `time.monotonic()`; None for now.
    """
    self._loaded = loaded
    self._config = loaded.config  # Once `_resolve` was there: that in numbers of steps.
    self._mode = mode
    self._model_dir = model_dir or ""
    self._written_dir = self._model_dir
    self._checkpoint = checkpoint
    self._allowed_changes = tuple(allow_config_change)
    self._optimizer_changed = False
    self._may_differ = tuple(allow_checkpoint_mismatch)
    self._quiet = quiet
    self._console = Console(quiet=quiet)
    self._ledger = TimeLedger(began=began)
    self._stop: StopRequest | None = None
    self._data_wait: DataWait | NoDataWait | None = None
    self._best: BestCheckpoints | None = None

  def run(self) -> RunResult:
    """Runs the mode to its end.

    Raises:
      ConfigError: before anything is built, if the run cannot start as configured.
      TrainingDiverged: if loss or weights stopped being finite.
      CheckpointMismatch: if model_dir holds a run of another model.
      Preempted: if a signal asked for a stop; the state is saved.
    """
    if self._mode == REPLAY:
      raise ConfigError.of("--mode", "replay computes a single step: call `replay` instead of `run`.")
    if self._mode == CHECK_TPU:
      raise ConfigError.of("--mode", "check_tpu runs no step: call `check_tpu` instead of `run`.")
    if name := self._loaded.config.trainer.runner:
      return runners.get_runner(name)(self._loaded, mode=self._mode, model_dir=self._model_dir)
    self._require_folder()
    if self._mode == EXPORT:
      raise ConfigError.of("--mode", "export runs no step: call `export` instead of `run`.")
    runtime = self._loaded.config.runtime
    cluster = find_cluster(runtime)
    role = Role.TRAINER if cluster is None else cluster.role(runtime.distribution_strategy)
    if role is Role.EVALUATOR:
      self._become_evaluator()
    if cluster is not None and role is not Role.EVALUATOR and self._mode == "continuous_eval":
      message = "continuous_eval runs in one process: give it the task 'evaluator', or no cluster at all."
      raise ConfigError.of("--mode", message)
    if cluster is not None and not cluster.is_chief and role is Role.TRAINER:
      self._console = Console(quiet=self._quiet, is_chief=False)
    if cluster is not None and role is Role.SERVER:
      self._serve(cluster)
    told = noted_for_servers(self._model_dir) if role is Role.COORDINATOR else contextlib.nullcontext()
    with told, self._losses_told(cluster), self._prepared(cluster) as (strategy, peers):
      self._stop = StopRequest(
        from_chief=peers.from_chief, any_process=peers.any, is_set_anywhere=peers.is_set_anywhere
      )
      self._data_wait = build_data_wait(runtime.deterministic_ops)
      with (
        stop_on_signals(self._stop.set, grace_secs=runtime.grace_secs, last_words=self._last_words),
        stop_on_notice(NOTICES[runtime.preemption_notice], self._stop.set),
      ):
        try:
          with self._losses_told(cluster):
            return self._run_session(strategy)
        except (Preempted, PeerLost) as stopped:
          raise self._noted(stopped) from None

  def _require_folder(self) -> None:
    """Refuses what cannot be done without a folder, or without checkpoints."""
    config, has_folder = self._loaded.config, bool(self._model_dir)
    problems = (
      [] if has_folder else [*outputs.folder_problems(config, self._mode, has_checkpoint=bool(self._checkpoint))]
    )
    if self._mode in TRAINING_MODES:
      problems += outputs.problems(config, self._loaded.origin, has_folder=has_folder)
    if problems:
      raise ConfigError(problems, self._loaded.name)

  def _losses_told(self, cluster: Cluster | None) -> contextlib.AbstractContextManager[None]:
    """Says of an error of TensorFlow that another process is gone, where that is what it means."""
    if cluster is None:
      return contextlib.nullcontext()
    return told_apart(cluster.name, lambda: max(committed_steps(self._model_dir), default=0))

  def _serve(self, cluster: Cluster) -> NoReturn:
    """Computes for the coordinator, and ends the process when that has ended."""
    configure_devices(self._loaded.config.runtime)
    # The task's operations, which may be those of another library, must be known here as well.
    resolve_task_class(self._loaded.config.task.task_class)
    serve(self._loaded.config.runtime, cluster, self._model_dir)

  def _become_evaluator(self) -> None:
    """Evaluates what the others of a cluster save, whatever mode they run in."""
    exports = bool(best_metric_names(self._loaded.config.trainer))
    twice = exports and self._mode in TRAINING_MODES and self._mode in EVALUATING_MODES
    self._mode = "continuous_eval"
    problems = checks.problems(self._loaded.config, self._mode)
    if twice:
      message = "evaluates in the training process, too: both would export the best weights. Use --mode=train."
      problems = [*problems, Problem("--mode", message)]
    if problems:
      raise ConfigError(problems, self._loaded.name)

  def replay(self, step: int | None = None) -> StepReport:
    """Computes one training step of the folder's run again, and writes nothing.

    Args:
      step: the update, by the number of completed ones after it. None: the first bad one of the newest crash.

    Raises:
      ConfigError: if the config is not that of the run, or the step cannot be replayed.
      CheckpointMismatch, BrokenCheckpoint: see there.
    """
    # Settles the seed, without which the config is not that of the run.
    with self._prepared(None) as (strategy, _), strategy.scope():
      trainer = self.build_trainer(self.build_task())
      replay = Replay(
        trainer,
        self._model_dir,
        non_finite_names=FiniteCheck(trainer.state.finite_variables()).non_finite_names,
        learning_rate_factor=self._loaded.config.trainer.recovery_learning_rate_factor,
        bundle=self._crash(step),
      )
      return replay.run(step)

  def check_tpu(self) -> TpuReport:
    """Looks for what a TPU would refuse in the training and the evaluation step. Needs no TPU, and writes nothing.

    Raises:
      ConfigError: if the trainer cannot be built as configured.
    """
    config = self._loaded.config
    set_precision(config.runtime)
    seed = draw_seed() if config.runtime.seed is None else config.runtime.seed
    self._settle_process(seed)
    self._resolve(DataSize(self.build_task, config.task, seed, peers=None, recorded=None), seed)
    return check_tpu(lambda: self.build_trainer(self.build_task()))

  def export(self) -> Exported:
    """Exports a checkpoint of the folder's run, in this process alone and on one device, whatever it was trained on.

    Raises:
      ConfigError: if there is no such checkpoint, or it cannot be exported as configured.
      ExportRefused: if the export does not do what the model in memory does; nothing is left of it.
    """
    self._loaded = self._loaded.with_value("runtime.distribution_strategy", "one_device", origin="--mode=export")
    with self._prepared(None) as (strategy, _), strategy.scope():
      trainer = self.build_trainer(self.build_task())
      return export_checkpoint(
        trainer,
        self._config.trainer,
        self._model_dir,
        checkpoint=self._checkpoint,
        batches=trainer.validation_batches,
        console=self._console,
        experiment=self._loaded.name,
        facts=manifest_facts(self._seed, strategy),
        may_differ=self._may_differ,
      )

  def _crash(self, step: int | None) -> CrashBundle | None:
    """Returns the newest crash bundle. One that cannot be read is no obstacle where a step is given."""
    try:
      return newest_bundle(self._model_dir)
    except ConfigError as error:
      if step is None:
        raise
      self._console.warn(str(error))
      return None

  @contextlib.contextmanager
  def _prepared(self, cluster: Cluster | None) -> Iterator[tuple[tf.distribute.Strategy, Peers]]:
    """Settles the seed, applies what is set for the whole process, and notes the start of a run that trains."""
    runtime = self._loaded.config.runtime
    # Read before the processes of a cluster have met: what the chief writes afterwards must not be seen by some only.
    record = load_record(self._model_dir)
    seed = settled_seed(runtime.seed if self._mode in UPDATING_MODES else None, self._model_dir)
    self._settle_seed(seed)
    before = self._refuse_drift() if self._mode in UPDATING_MODES else None
    if self._mode in TRAINING_MODES and not committed_steps(self._model_dir) and self._checkpoint is None:
      require_sources(self._loaded.config.task)
    if self._mode in UPDATING_MODES:
      require_service(self._loaded.config.task.train_data, "task.train_data")
    configure_devices(runtime)
    set_precision(runtime)
    strategy = build_strategy(runtime, cluster)
    peers = build_peers(strategy)
    self._settle_seed(peers.from_chief(seed))
    self._settle_process(self._seed)
    if self._mode in TRAINING_MODES and (problems := missing_writers(self._loaded.config.trainer)):
      raise ConfigError(problems, self._loaded.name)
    recorded = None if record is None else record.num_examples
    size = DataSize(self.build_task, self._loaded.config.task, self._seed, peers, recorded)
    with strategy.scope():
      self._resolve(size, self._seed)
    with written_folder(self._model_dir, peers) as self._written_dir:
      if self._mode in TRAINING_MODES:
        started = record or RunRecord(seed=self._seed)
        now = dataclasses.replace(started, num_examples=size.num_examples or recorded)
        if now != record or not peers.is_chief:
          now.save(self._written_dir)
        self._write_config(before)
      yield strategy, peers

  def _resolve(self, size: DataSize, seed: int) -> None:
    """Settles how long everything is, in steps."""
    config, lines = lengths.resolve_lengths(self._loaded, self._mode, size)
    if size.has_counted:
      seed_everything(seed)  # As if nobody had asked.
    self._config, more = outputs.kept(config, self._mode, has_folder=bool(self._model_dir))
    for line in (*lines, *more):
      self._console.note(line)

  def _settle_process(self, seed: int) -> None:
    """Applies gin and the seed."""
    # Imported before gin, which may bind configurables of its module.
    resolve_task_class(self._loaded.config.task.task_class)
    self._loaded.gin.apply()
    seed_everything(seed)

  @property
  def _seed(self) -> int:
    return int(self._loaded.config.runtime.seed)

  def _settle_seed(self, seed: int) -> None:
    if seed != self._loaded.config.runtime.seed:
      self._loaded = self._loaded.with_value("runtime.seed", seed, origin="the run's record")

  def _run_session(self, strategy: tf.distribute.Strategy) -> RunResult:
    config = self._config
    with strategy.scope():
      trainer = self.build_trainer(self.build_task())
    if self._mode in TRAINING_MODES and not is_asynchronous(strategy):
      size = config.task.train_data.global_batch_size
      self._console.note(batch_note(trainer.train_input, size, strategy.num_replicas_in_sync))
    record = load_record(self._written_dir)
    if self._mode in TRAINING_MODES and record is not None:
      trainer.execution.remember(record.steps_per_closure, self._note_steps_per_closure)
      self._note_lengths(trainer.train_input.num_examples, record.num_examples)
    session = Session(
      trainer=trainer,
      options=config.trainer,
      mode=self._mode,
      model_dir=self._written_dir,
      source_dir=self._model_dir or self._written_dir,
      writer=self.build_writer(),
      console=self._console,
      facts=manifest_facts(self._seed, strategy),
      checkpoint=self._checkpoint,
      may_differ=self._may_differ,
      optimizer_changed=self._optimizer_changed,
      hparams=drift.flat_values(self._loaded.to_yaml()),
      texts={"config": _as_code(self._loaded.to_yaml()), **self._operative_gin()},
      at_end=[] if self._best is None else [self._best.finish],
      stop=self._stop,
      ledger=self._ledger,
      hang_secs=config.runtime.hang_secs,
      experiment=self._loaded.name,
    )
    return session.run()

  def _note_lengths(self, known: int | None, counted: int | None) -> None:
    for line in lengths.notes(self._loaded, self._config, self._mode, known):
      self._console.note(line)
    if warning := lengths.size_warning(counted, self._config.task.train_data.num_examples, known):
      self._console.warn(warning)

  def _note_steps_per_closure(self, steps: int) -> None:
    """Records a measured choice: the next start uses it again."""
    if (record := load_record(self._written_dir)) is not None:
      dataclasses.replace(record, steps_per_closure=steps).save(self._written_dir)

  def _last_words(self) -> str:
    """Says what is left when a deadline ends the process."""
    steps = committed_steps(self._model_dir)
    return f"The checkpoint that was committed last is that of step {steps[-1]}." if steps else "Nothing was saved yet."

  def _noted(self, stopped: Preempted | PeerLost) -> Preempted | PeerLost:
    """Records where a run was stopped; a second stop at the same step is no longer worth a restart."""
    if self._mode not in TRAINING_MODES or stopped.code == ExitCode.INTERRUPTED:
      return stopped
    if not self._config.trainer.save_checkpoints:  # To start again would be to begin again, for ever.
      return _unsaved(stopped)
    record = load_record(self._written_dir)
    if record is None:
      return stopped
    try:
      dataclasses.replace(record, stopped_at=stopped.reached).save(self._written_dir)
    except NotWritten as error:  # That it was asked to stop is what the caller must know.
      self._console.warn(str(error))
    if record.stopped_at != stopped.reached:
      return stopped
    again = "for the second time without a step of progress"
    if isinstance(stopped, PeerLost):
      return PeerLost(stopped.step, f"{again}, {stopped.who}", stopped.reached, ExitCode.ERROR)
    return Preempted(stopped.step, f"{stopped.reason}, {again}", ExitCode.ERROR)

  def build_task(self) -> Task:
    """Imports and builds the task that the config names. Called under the strategy's scope."""
    task_class = resolve_task_class(self._loaded.config.task.task_class)
    config = self._config.task
    return task_class(config, logging_dir=self._written_dir, name=config.name)

  def build_trainer(self, task: Task) -> Trainer:
    """Builds model, optimizer and trainer. Called under the strategy's scope."""
    config = self._config
    trains = self._mode in UPDATING_MODES
    if trains:
      require_statistics(config.trainer, task, is_given=self._checkpoint is not None)
    with computed_on_host(config.runtime.initialize_on_host):
      model = require_keras_model(task.build_model(), task)
    name = config.trainer.trainer_class
    trainer_class = resolve_trainer_class(name) if name else self.trainer_class
    trainer = trainer_class(
      config,
      task,
      model,
      task.create_optimizer(config.trainer.optimizer_config, config.runtime) if trains else None,
      train=trains,
      evaluate=self._mode in EVALUATING_MODES,
      stop=self._stop,
      data_wait=self._data_wait,
    )
    if self._mode not in ("eval", EXPORT, REPLAY, CHECK_TPU):
      # A continuous evaluation is another process than the training: its records are those on disk.
      records = trainer.state.host.best if trains else None
      self._best = build_best_checkpoints(config.trainer, self._written_dir, records)
      trainer.checkpoint_exporter = self._best
    return trainer

  def build_writer(self) -> Writer:
    """Returns where reports go."""
    if not self._config.trainer.write_summaries:
      return WriterGroup([self._console])
    validation = self._loaded.config.trainer.validation_summary_subdir
    # An evaluation asked for by hand has curves of its own: it must not hide points of the training run.
    validation = "eval" if self._mode == "eval" else validation
    names = list(self._loaded.config.task.evaluation_sets)
    # Others than the chief write where nobody reads, and must not report to anybody.
    is_chief = self._written_dir == self._model_dir
    asked = chosen_writers(self._config.trainer, self._model_dir) if self._mode in TRAINING_MODES and is_chief else []
    return WriterGroup([self._console, *file_writers(self._written_dir, self._mode, validation, names), *asked])

  def _operative_gin(self) -> dict[str, str]:
    """Saves the gin bindings that took effect; returns them as a text to show, or nothing if gin was not used."""
    if self._loaded.gin == gin_bindings.GinBindings():
      return {}
    text = gin_bindings.operative_config()
    if self._mode in TRAINING_MODES:
      write_text(os.path.join(self._written_dir, "operative_config.gin"), text)
    return {"gin": _as_code(text)}

  def _write_config(self, before: str | None) -> None:
    """Writes params.yaml and where its values came from; names what is different from the last start's, `before`."""
    text = self._loaded.to_yaml()
    if before is not None:
      for line in drift.changed_keys(before, text):
        self._console.warn(f"the config is not that of the last start: {line}")
      changed = drift.changes(before, text)
      self._optimizer_changed = any(key.startswith(_OPTIMIZER_KEYS) for key in changed)
    write_text(os.path.join(self._written_dir, "params.yaml"), text)
    write_text(os.path.join(self._written_dir, "params_provenance.yaml"), self._loaded.provenance_text())

  def _refuse_drift(self) -> str | None:
    """Returns the params.yaml of the last start, or None where nothing was saved yet.

    Raises:
      ConfigError: if the present config differs in keys that must not change.
    """
    path = os.path.join(self._model_dir, "params.yaml")
    if not self._model_dir or not (tf.io.gfile.exists(path) and committed_steps(self._model_dir)):
      return None
    with tf.io.gfile.GFile(path) as file:
      before = str(file.read())
    if problems := drift.problems(before, self._loaded.to_yaml(), self._allowed_changes):
      raise ConfigError(problems, self._loaded.name)
    return before


def _unsaved(stopped: Preempted | PeerLost) -> Preempted | PeerLost:
  if isinstance(stopped, PeerLost):
    return PeerLost(stopped.step, stopped.who, stopped.reached, ExitCode.ERROR)
  return Preempted(stopped.step, stopped.reason, ExitCode.ERROR, is_saved=False)


def _as_code(text: str) -> str:
  """Returns text as a block of code in Markdown."""
  return "".join(f"    {line}\n" for line in text.splitlines())
