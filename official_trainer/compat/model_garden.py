"""Model Garden's ways in: `run_experiment` and the runner class, with its arguments and return values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from official_trainer.checkpoint.best_rules import BestCheckpoints, build_best_checkpoints
from official_trainer.config import foreign
from official_trainer.config.checks import EVALUATING_MODES, RUN_MODES, TRAINING_MODES
from official_trainer.config.trainer import TrainerConfig
from official_trainer.errors import ConfigError
from official_trainer.loop import Loop
from official_trainer.random_state import seed_everything
from official_trainer.run.session import Session, orbit_action
from official_trainer.run.written import file_writers, manifest_facts
from official_trainer.run_record import RunRecord, load_record, settled_seed
from official_trainer.trainer import Trainer
from official_trainer.writers.base import Writer, WriterGroup
from official_trainer.writers.chosen import chosen_writers, missing_writers
from official_trainer.writers.console import Console

OrbitAction = Callable[[Mapping[str, Any]], None]


class ExperimentRunner:
  """Runs a Model Garden task and config on this trainer; takes what `train_lib.OrbitExperimentRunner` takes."""

  def __init__(
    self,
    distribution_strategy: tf.distribute.Strategy | None,
    task: Any,
    mode: str,
    params: Any,
    model_dir: str,
    run_post_eval: bool = False,
    save_summary: bool = True,
    train_actions: Sequence[OrbitAction] | None = None,
    eval_actions: Sequence[OrbitAction] | None = None,
    trainer: Trainer | None = None,
    controller_cls: type[Loop] = Loop,
    summary_manager: Any = None,
    eval_summary_manager: Any = None,
    enable_async_checkpointing: bool | None = None,
  ):
    """Builds the trainer under the strategy's scope.

    Args:
      distribution_strategy: the strategy, or None for the one in scope.
      task: a task, ours or Model Garden's.
      mode: "train", "eval", "train_and_eval", "train_and_post_eval" or "continuous_eval".
      params: an ExperimentConfig, ours or Model Garden's.
      model_dir: the run's folder.
      run_post_eval: whether to evaluate once more at the end and return the logs.
      save_summary: whether TensorBoard summaries, history and timings are written.
      train_actions: called with the trainer's output after every inner loop.
      eval_actions: called with the trainer's output after every evaluation.
      trainer: a trainer to use in place of a new one, built under the strategy's scope.
      controller_cls: Loop or a subclass of it.
      summary_manager: must be None; pass an action instead.
      eval_summary_manager: must be None; pass an action instead.
      enable_async_checkpointing: whether saving happens in the background; None asks the config.

    Raises:
      ConfigError: if the mode is unknown, or a summary manager is given.
    """
    if mode not in RUN_MODES:
      raise ConfigError.of("mode", f"must be one of {', '.join(RUN_MODES)}, got {mode!r}.")
    if summary_manager is not None or eval_summary_manager is not None:
      raise ConfigError.of("summary_manager", "is not supported; pass `train_actions` / `eval_actions` that write.")
    self._strategy = distribution_strategy or tf.distribute.get_strategy()
    self._params = params
    self._mode = mode
    self._model_dir = model_dir
    self._run_post_eval = run_post_eval
    self._options = foreign.read(TrainerConfig, params.trainer)
    seed = settled_seed(getattr(getattr(params, "runtime", None), "seed", None), model_dir)
    if trainer is None:
      seed_everything(seed)  # Before the model is built: layers choose their kind of randomness then.
      with self._strategy.scope():
        trainer = self.build_trainer(task, seed)
    self._trainer = trainer
    if mode in TRAINING_MODES and load_record(model_dir) is None:
      RunRecord(seed=trainer.seed).save(model_dir)
    console = Console()
    asynchronous = enable_async_checkpointing
    self._session = Session(
      trainer=trainer,
      options=self._options,
      mode=mode,
      model_dir=model_dir,
      writer=self._build_writer(console, save_summary),
      console=console,
      facts=manifest_facts(trainer.seed, self._strategy),
      asynchronous=self._options.async_checkpoint if asynchronous is None else asynchronous,
      allow_untrained=True,
      evaluates=mode in EVALUATING_MODES or run_post_eval,
      train_actions=[orbit_action(action) for action in train_actions or ()],
      eval_actions=[orbit_action(action) for action in eval_actions or ()],
      loop_cls=controller_cls,
    )

  @property
  def params(self) -> Any:
    return self._params

  @property
  def model_dir(self) -> str:
    return self._model_dir

  @property
  def trainer(self) -> Trainer:
    return self._trainer

  @property
  def controller(self) -> Loop:
    return self._session.loop

  def build_trainer(self, task: Any, seed: int) -> Trainer:
    """Builds model, optimizer and trainer. Override to build them differently. Called under the strategy's scope."""
    return Trainer(
      self._params,
      task,
      task.build_model(),
      task.create_optimizer(self._params.trainer.optimizer_config, self._params.runtime),
      train=self._mode in TRAINING_MODES,
      evaluate=self._mode in EVALUATING_MODES or self._run_post_eval,
      checkpoint_exporter=maybe_create_best_ckpt_exporter(self._params, self._model_dir),
      seed=seed,
    )

  def run(self) -> tuple[tf_keras.Model, Mapping[str, Any]]:
    """Runs the mode.

    Returns:
      (model, logs of the last evaluation), with {} for the logs unless post-evaluation was asked for.
    """
    result = self._session.run(post_eval=self._run_post_eval)
    wanted = self._run_post_eval or self._mode == "train_and_post_eval"
    return result.model, result.logs if wanted else {}

  def _build_writer(self, console: Console, save_summary: bool) -> Writer:
    if not (save_summary and self._options.write_summaries):
      return WriterGroup([console])
    asked = []
    if self._mode in TRAINING_MODES:
      if problems := missing_writers(self._options):
        raise ConfigError(problems)
      asked = chosen_writers(self._options, self._model_dir)
    names = list(getattr(self._params.task, "evaluation_sets", None) or ())
    files = file_writers(self._model_dir, self._mode, self._options.validation_summary_subdir, names)
    return WriterGroup([console, *files, *asked])


def run_experiment(
  distribution_strategy: tf.distribute.Strategy | None,
  task: Any,
  mode: str,
  params: Any,
  model_dir: str,
  **kwargs: Any,
) -> tuple[tf_keras.Model, Mapping[str, Any]]:
  """Runs a task as `official.core.train_lib.run_experiment` does. See ExperimentRunner for the arguments."""
  runner = ExperimentRunner(
    distribution_strategy=distribution_strategy, task=task, mode=mode, params=params, model_dir=model_dir, **kwargs
  )
  return runner.run()


def maybe_create_best_ckpt_exporter(params: Any, data_dir: str | None) -> BestCheckpoints | None:
  """Returns the exporter that the config asks for, or None.

  Args:
    params: an ExperimentConfig, ours or Model Garden's.
    data_dir: the folder below which best checkpoints are kept, normally model_dir.
  """
  if not data_dir:
    return None
  return build_best_checkpoints(foreign.read(TrainerConfig, params.trainer), os.fspath(data_dir))
