"""One process's part of a run: restore, run a mode with its ordered actions, close."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.actions.checkpoint import SaveCheckpoint, SaveNothing
from official_trainer.actions.early_stop import EndEarly, history_rules
from official_trainer.actions.event import VALIDATION, Action, Actions, Event
from official_trainer.actions.pruning import MaskPruned
from official_trainer.actions.record import RecordHistory
from official_trainer.actions.recover import CheckDivergence, Recover
from official_trainer.actions.time_limit import TimeLimit
from official_trainer.actions.write import WriteReport
from official_trainer.cadence import Cadence
from official_trainer.checkpoint.finite import FiniteCheck
from official_trainer.checkpoint.manifest import committed_steps
from official_trainer.checkpoint.store import CheckpointStore
from official_trainer.config.checks import EVALUATING_MODES, RUN_MODES, TRAINING_MODES, model_dir_problems
from official_trainer.config.trainer import TrainerConfig
from official_trainer.distribute.fingerprint import Fingerprint
from official_trainer.distribute.initial_values import peak_memory
from official_trainer.distribute.lost import told_apart
from official_trainer.distribute.scratch import is_kept
from official_trainer.errors import ConfigError, NotWritten, TrainingDiverged
from official_trainer.inspect.quantity import quantity
from official_trainer.loop import Loop
from official_trainer.metrics.window import read_window
from official_trainer.optim.variable_paths import variable_paths
from official_trainer.run.crash_reports import CrashReports
from official_trainer.run.export import build_export_best
from official_trainer.run.inspection import Inspection
from official_trainer.run.metric_names import are_known, metric_names, require_reported
from official_trainer.run.result import RunResult
from official_trainer.run.rollback import RollBackToCheckpoint
from official_trainer.run.start import Start
from official_trainer.run.watch import CheckpointWatch
from official_trainer.stop import StopRequest
from official_trainer.timing.ledger import TimeLedger
from official_trainer.timing.phases import Phase, Phases
from official_trainer.timing.watchdog import Watchdog
from official_trainer.trainer import Trainer
from official_trainer.writers.base import Writer
from official_trainer.writers.console import Console
from official_trainer.writers.plots import plot_history


class Session:
  """Runs a trainer in one of the modes, in one model_dir."""

  def __init__(
    self,
    *,
    trainer: Trainer,
    options: TrainerConfig,
    mode: str,
    model_dir: str,
    source_dir: str | None = None,
    writer: Writer,
    console: Console,
    facts: Mapping[str, Any] | None = None,
    checkpoint: str | None = None,
    texts: Mapping[str, str] | None = None,
    hparams: Mapping[str, Any] | None = None,
    asynchronous: bool | None = None,
    allow_untrained: bool = False,
    may_differ: Collection[str] = (),
    optimizer_changed: bool = False,
    evaluates: bool | None = None,
    train_actions: Sequence[Action] = (),
    eval_actions: Sequence[Action] = (),
    at_end: Sequence[Callable[[], None]] = (),
    loop_cls: type[Loop] = Loop,
    stop: StopRequest | None = None,
    ledger: TimeLedger | None = None,
    hang_secs: float | None = None,
    experiment: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Joins the parts; touches no file.

    Args:
      trainer: built under its strategy's scope.
      options: the trainer config.
      mode: one of RUN_MODES.
      model_dir: the folder that this process writes: the run's folder.
      source_dir: the run's folder, where this process is not the one that writes it.
      writer: where reports go, the console included.
      console: for status lines and warnings.
      facts: recorded in the manifest of every checkpoint.
      checkpoint: path given by `--checkpoint`, or None.
      texts: shown in TensorBoard at a fresh start: tag -> Markdown.
      hparams: the settings, by dotted key, for writers that show them.
      asynchronous: whether checkpoints are written in the background; None asks the config.
      allow_untrained: whether mode "eval" may score untrained weights when the folder has no checkpoint.
      may_differ: variables that may differ between the model and the checkpoint that a start reads.
      optimizer_changed: whether the optimizer's settings are others than at the last start, with permission.
      evaluates: whether the trainer can evaluate; None for what the mode needs.
      train_actions: users' actions after every inner loop, after ours.
      eval_actions: users' actions after every evaluation, after ours.
      at_end: called at the end of a run that got there.
      loop_cls: Loop or a subclass.
      stop: the request to stop that the trainer watches, or None.
      ledger: counts where the time goes; None begins one now.
      hang_secs: `runtime.hang_secs`; None watches for no hang.
      experiment: its name, recorded in exports.
      sleep: waits between looks for new checkpoints, in seconds.
      clock: returns seconds.

    Raises:
      ConfigError: if the mode is unknown, `loop_cls` is no Loop, or checkpoints in `model_dir` could not be read back.
    """
    if mode not in RUN_MODES:
      raise ConfigError.of("--mode", f"must be one of {', '.join(RUN_MODES)}, got {mode!r}.")
    if problems := model_dir_problems(model_dir):
      raise ConfigError(problems)
    if not issubclass(loop_cls, Loop):
      raise ConfigError.of("controller_cls", f"must be a subclass of official_trainer.loop.Loop, got {loop_cls}.")
    self._trainer = trainer
    self._state = trainer.state
    self._options = options
    self._mode = mode
    self._model_dir = model_dir
    self._writer = writer
    self._console = console
    self._texts = dict(texts or {})
    self._hparams = dict(hparams or {})
    self._optimizer_changed = optimizer_changed
    self._stop = stop
    self._peers = trainer.peers
    self._sleep = sleep
    self._clock = clock
    self._ledger = ledger or TimeLedger(clock=clock)
    # The others' folder goes with them, and what went wrong with one of them is worth as much as with the chief.
    reports_dir = source_dir or model_dir if is_kept(model_dir) else None
    self._reports = CrashReports(trainer, reports_dir, facts or {}, warn=console.warn)
    self._watchdog = self._build_watchdog(hang_secs)
    watched = [] if self._watchdog is None else [self._watchdog.phase]
    self._phases = Phases(self._ledger.phase, *watched, status=console.status)
    self._finite = FiniteCheck(self._state.finite_variables())
    self._fingerprint = Fingerprint(trainer.strategy, self._peers, self._state.variables())
    self._store = CheckpointStore(
      model_dir,
      self._state.checkpoint,
      max_to_keep=options.max_to_keep,
      always_keep=options.checkpoints_at,
      asynchronous=options.async_checkpoint if asynchronous is None else asynchronous,
      facts=facts,
      source=source_dir,
      agreed=self._peers.from_chief,
    )
    self._start = Start(
      trainer,
      self._store,
      self._finite.non_finite_names,
      checkpoint=checkpoint,
      allow_untrained=allow_untrained,
      may_differ=may_differ,
      note=console.note,
      warn=console.warn,
    )
    self._roll_back = RollBackToCheckpoint(
      trainer,
      self._store,
      learning_rate_factor=options.recovery_learning_rate_factor,
      phases=self._phases,
      restored=self._open_writer,
    )
    self._inspection = Inspection(
      trainer,
      options,
      model_dir,
      writer=writer,
      phases=self._phases,
      note=console.note,
      warn=console.warn,
      group_columns=lambda: trainer.updates.columns(variable_paths(trainer.model)),
    )
    self._best_export = build_export_best(
      trainer,
      options,
      model_dir,
      console=console,
      experiment=experiment,
      facts=facts or {},
      phases=self._phases,
    )
    # Where divergence is let pass, it is still not saved.
    unchecked = options.recovery_max_trials < 0
    together: Any = {"train_steps": options.train_steps, "from_chief": self._peers.from_chief}
    self._end_early = EndEarly(self._state, history_rules(options), **together)
    self._time_limit = TimeLimit(self._state, options.max_wall_secs, self._ledger.total_secs, **together)
    self._saver = self._build_saver(checks_finite=unchecked)
    self._stop_saver = self._build_saver(checks_finite=True)  # A stop saves at a step that nobody has looked at.
    self._loop = loop_cls(
      trainer=trainer,
      cadence=Cadence(
        train_steps=options.train_steps,
        steps_per_loop=options.steps_per_loop,
        checkpoint_interval=options.checkpoint_interval,
        checkpoints_at=options.checkpoints_at,
        first_loop_steps=options.first_loop_steps,
        evaluates_first_loop=options.evaluate_first_loop,
      ),
      actions=self._build_actions(train_actions, eval_actions, at_end),
      train=mode in TRAINING_MODES,
      evaluate=mode in EVALUATING_MODES if evaluates is None else evaluates,
      clock=clock,
      phases=self._phases,
      waited=self._ledger.waited,
      stop=stop,
      further_stops=self._inspection.stops,
      around_loop=self._inspection.profile.recorded,
    )

  @property
  def loop(self) -> Loop:
    return self._loop

  @property
  def store(self) -> CheckpointStore:
    return self._store

  def run(self, *, post_eval: bool = False) -> RunResult:
    """Runs the mode to its end.

    Args:
      post_eval: whether to evaluate once more at the end, whatever the mode, and return its logs.

    Raises:
      TrainingDiverged, CheckpointMismatch, ConfigError: see there.
    """
    try:
      with self._trainer.strategy.scope(), self._watched(), self._losses_told():
        logs = self._evaluate_mode() if self._mode not in TRAINING_MODES else self._train_mode()
        if post_eval:
          logs = self._loop.evaluate(self._options.validation_steps)
        self._loop.finish()
    except BaseException as error:
      # A save that was begun before the error is good: the next start must find it whole.
      with contextlib.suppress(Exception):  # The error being raised says more than one of that save.
        self._store.wait()
      self._reports.failed(error)
      if self._mode in TRAINING_MODES:
        self._unless_refused(lambda: self._ledger.save(self._model_dir))
      self._unless_refused(self._writer.close)
      raise
    else:
      self._writer.close()
    finally:
      self._console.stop()
    return RunResult(
      model=self._trainer.model,
      state=self._state,
      logs=dict(logs or {}),
      model_dir=self._model_dir if is_kept(self._model_dir) else "",
    )

  def _build_actions(
    self, train_actions: Sequence[Action], eval_actions: Sequence[Action], at_end: Sequence[Callable[[], None]]
  ) -> Actions:
    """The order of side effects, written once."""
    options = self._options
    check = CheckDivergence(
      self._finite.non_finite_names,
      upper_bound=options.loss_upper_bound,
      begin_steps=options.recovery_begin_steps,
      every_loop=options.recovery_max_trials > 0,
    )
    recover = Recover(
      check,
      max_trials=options.recovery_max_trials,
      roll_back=self._roll_back,
      report=self._note_divergence,
      warn=self._console.warn,
    )
    history = RecordHistory(self._state, self._read_window)
    write = WriteReport(self._writer)
    trains = self._mode in TRAINING_MODES
    profile = self._inspection.profile
    export = [] if self._best_export is None else [self._best_export[1]]
    return Actions(
      after_loop=(
        *([profile] if trains else []),  # before anything else: what other actions do is not asked for
        *([recover] if options.recovery_max_trials >= 0 else []),  # a diverged loop must not be saved or reported
        MaskPruned(self._trainer.pruning.mask),  # what is saved is sparse
        history,  # into the state, so that the checkpoint of a step holds the row of that step
        *([self._time_limit, self._saver] if trains else []),  # before writing: state matters more than curves
        write,
        *(self._inspection.after_loop if trains else ()),  # after the state is safe: a compiler may end the process
        *([self._note_time] if trains else []),  # last: it is worth the least
        *train_actions,
      ),
      after_eval=(
        history,
        *([self._end_early] if trains else []),  # decides from the rows, and before anything that may fail
        write,
        *export,  # what takes longest: everything else is known by then
        *([self._note_time] if trains else []),
        *eval_actions,
      ),
      on_finish=(self._note_finish, self._stop_saver.save_what_is_new),
      on_stop=(self._stop_saver.save_what_is_new, profile.end, self._write_time) if trains else (),
      at_end=(
        profile.end,
        self._wait_for_save,
        *at_end,
        *(action.finish for action in export),
        *([self._plot] if trains and options.write_summaries else []),
        *([self._write_time] if trains else []),
      ),
      on_error=(profile.end, lambda: self._unless_refused(self._writer.flush)),
    )

  def _build_saver(self, *, checks_finite: bool) -> SaveCheckpoint | SaveNothing:
    if not self._options.save_checkpoints:
      return SaveNothing()
    return SaveCheckpoint(
      self._state,
      self._store,
      non_finite_names=self._finite.non_finite_names if checks_finite else None,
      require_equal=self._fingerprint.require_equal,
      phases=self._phases,
    )

  # ---- Training -----------------------------------------------------------------------------------------------------

  def _train_mode(self) -> Mapping[str, Any] | None:
    self._ledger.load(self._model_dir)
    with self._phases(Phase.RESTORE):
      fresh = not self._start.resume_or_initialise()
      self._fingerprint.require_equal(self._state.step)
      if self._peers.num > 1:
        self._console.note(
          f"{self._peers.name} of {self._peers.num} begins at step {self._state.step}, as all others do"
        )
    for line in (self._trainer.train_input.position, *self._trainer.updates.notes):
      self._console.note(line)
    options, state = self._options, self._state
    if fresh or self._optimizer_changed:
      self._trainer.hyperparameters.apply()
    self._roll_back.begin()
    self._open_writer()
    if fresh:
      self._start.require_finite()
    if self._mode in EVALUATING_MODES:
      self._require_metrics()
    if self._best_export is not None:
      self._best_export[0].rehearse()
    if fresh:
      self._saver.save()
      for tag, markdown in self._texts.items():
        self._writer.text(state.step, tag, markdown)
    if self._hparams:
      self._writer.hparams(self._hparams)
    self._inspection.begin(is_fresh=fresh)
    peaks = ", ".join(f"{device} {quantity(peak, 'B')}" for device, peak in peak_memory().items())
    self._console.note(f"peak memory so far: {peaks}")
    self._console.start(state.step, options.train_steps)
    self._end_early.decide()
    self._time_limit.decide()
    if self._mode == "train_and_eval":
      return self._loop.train_and_evaluate(options.train_steps, options.validation_steps, options.validation_interval)
    self._loop.train(options.train_steps)
    if self._mode == "train_and_post_eval":
      return self._loop.evaluate(options.validation_steps)
    return None

  def _open_writer(self) -> None:
    """Makes what was written agree with the state: nothing of later steps remains."""
    self._ledger.begin_leg(self._state.step)
    self._writer.open(self._state.step, self._state.host.history.rows)

  def _unless_refused(self, write: Callable[[], None]) -> None:
    """Writes where something else ends the run: that says more than a file that cannot be written."""
    try:
      write()
    except NotWritten as error:
      self._console.warn(str(error))

  def _require_metrics(self) -> None:
    """Checks every metric name in the config against what an evaluation reports, before the first step."""
    wanted = metric_names(self._options)
    if not are_known(self._trainer, wanted):
      self._console.status("checking the metrics")
      require_reported(self._trainer, wanted)

  def _read_window(self) -> dict[str, Any]:
    return read_window(self._trainer.strategy, self._trainer.report_metrics, self._peers)

  def _wait_for_save(self) -> None:
    with self._phases(Phase.SAVE):
      self._store.wait()

  def _note_time(self, event: Event) -> None:
    self._ledger.reached(event.step)
    if event.saves or event.mode == VALIDATION:
      self._ledger.save(self._model_dir)

  def _note_divergence(self, error: TrainingDiverged) -> None:
    self._ledger.reached(error.step)  # Those steps were trained, and are lost.
    self._reports.diverged(error)

  def _note_finish(self) -> None:
    self._console.note(f"done at step {self._state.step}: {self._state.host.finished}")

  def _write_time(self) -> None:
    self._ledger.save(self._model_dir)
    self._console.note(f"time: {self._ledger.summary()}")

  def _build_watchdog(self, hang_secs: float | None) -> Watchdog | None:
    if hang_secs is None:
      return None
    trains = self._mode in TRAINING_MODES
    # A pipeline is run forward in the first inner loop, for as long as that takes.
    unwatched = [Phase.COMPILE] if trains and self._trainer.train_input.runs_forward else []
    return Watchdog(
      hang_secs,
      progress=lambda: (self._state.step, int(self._trainer.eval_batches.numpy())),
      on_hang=self._reports.hung,
      unwatched=unwatched,
      clock=self._clock,
    )

  def _losses_told(self) -> contextlib.AbstractContextManager[None]:
    """Says of an error of TensorFlow that another process is gone, where that is what it means."""
    if not self._peers.needs_others:
      return contextlib.nullcontext()
    return told_apart(
      self._peers.name,
      newest_step=lambda: max(committed_steps(self._store.source), default=0),
      reached=lambda: self._state.step,
    )

  @contextlib.contextmanager
  def _watched(self) -> Iterator[None]:
    with contextlib.nullcontext() if self._watchdog is None else self._watchdog.watching():
      if self._mode in TRAINING_MODES:
        with self._phases(Phase.OTHER):
          yield
      else:
        yield  # Between two evaluations it may wait for checkpoints, for as long as it likes.

  def _plot(self) -> None:
    if len(self._state.host.history):
      plot_history(
        self._state.host.history.rows, os.path.join(self._model_dir, "history.png"), os.path.basename(self._model_dir)
      )

  # ---- Evaluation ---------------------------------------------------------------------------------------------------

  def _evaluate_mode(self) -> Mapping[str, Any] | None:
    options = self._options
    if self._mode == "continuous_eval":
      self._writer.open(0, ())
      watch = CheckpointWatch(
        self._state,
        self._model_dir,
        final_step=options.train_steps,
        timeout_secs=options.continuous_eval_timeout,
        stop=self._stop,
        warn=self._console.warn,
        sleep=self._sleep_alive,
        clock=self._clock,
      )
      return self._loop.evaluate_continuously(options.validation_steps, checkpoints=watch)
    self._start.load_for_evaluation()
    self._open_writer()
    return self._loop.evaluate(options.validation_steps)

  def _sleep_alive(self, secs: float) -> None:
    """Sleeps as a phase of its own: waiting for the next checkpoint, however long, is no hang."""
    with self._phases(Phase.OTHER):
      self._sleep(secs)


def orbit_action(action: Callable[[Mapping[str, Any]], None]) -> Action:
  """Adapts an `orbit.Action`, which takes the trainer's output, to an action of ours."""

  def run(event: Event) -> None:
    action(event.output)

  return run
