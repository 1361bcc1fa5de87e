"""What a training run tells about its model and its steps: parameters, the cost of a step, graphs, profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

import tensorflow as tf
from absl import logging

from official_trainer.actions.event import TRAIN, Action
from official_trainer.actions.once import AfterFirstLoop
from official_trainer.actions.profile import Profile
from official_trainer.atomic import write_text
from official_trainer.config.trainer import TrainerConfig
from official_trainer.distribute.scratch import is_kept
from official_trainer.errors import NotWritten
from official_trainer.inspect.cost import StepCost, step_cost
from official_trainer.inspect.graphs import dump_graphs
from official_trainer.inspect.parameters import parameter_table
from official_trainer.inspect.replica_graphs import ReplicaGraphs
from official_trainer.inspect.request_file import RequestFile
from official_trainer.optim.group_columns import GroupColumns
from official_trainer.timing.phases import Enter, Phase
from official_trainer.trainer import Trainer
from official_trainer.writers.base import Writer

PARAMETERS = "parameters.txt"
PROFILE_REQUEST = "PROFILE"
_DUMPED_AT = 1


class Inspection:
  """Looks at a run without changing it. All processes that train together do the same; the chief shows it."""

  def __init__(
    self,
    trainer: Trainer,
    options: TrainerConfig,
    model_dir: str,
    *,
    writer: Writer,
    phases: Enter,
    note: Callable[[str], None],
    warn: Callable[[str], None],
    group_columns: Callable[[], Mapping[str, GroupColumns]] = dict,
  ):
    """Stores its arguments.

    Args:
      trainer: the run's trainer.
      options: the trainer config.
      model_dir: the folder that this process writes.
      writer: where reports go.
      phases: entered while graphs are traced and compiled.
      note: shows a line.
      warn: shows a warning.
      group_columns: returns what parameter groups say, by the variable's path.
    """
    self._trainer = trainer
    self._options = options
    self._model_dir = model_dir
    self._writer = writer
    self._phases = phases
    self._is_chief = trainer.peers.is_chief
    self._warn = warn
    self._note = note if self._is_chief else lambda text: None
    self._group_columns = group_columns
    self._has_folder = is_kept(model_dir)
    self._is_fresh = False
    self._first_step = 0
    peers = trainer.peers
    request = RequestFile(
      os.path.join(model_dir, PROFILE_REQUEST),
      looks=self._is_chief and self._has_folder,
      warn=warn,
      from_chief=peers.from_chief if peers.num > 1 else None,
    )
    on_demand = options.profile.on_demand_steps
    self.profile = Profile(
      os.path.join(model_dir, "profile"),
      window=options.profile.steps,
      request=lambda: on_demand if on_demand and request.taken() else 0,
      records=self._is_chief,
      note=self._note,
      warn=warn,
    )

  @property
  def after_loop(self) -> tuple[Action, ...]:
    """What looks at the graphs, once, after the first inner loop."""
    looks = self._options.inspect_model or self._options.dump_graphs != "none"
    return (AfterFirstLoop(self._look_at_graphs),) if looks else ()

  def stops(self, step: int) -> Collection[int]:
    """Returns where inner loops must end for something to be looked at, given where the next one begins."""
    dumped = () if self._options.dump_graphs == "none" else (_DUMPED_AT,)
    return (*dumped, *self.profile.stops(step))

  def begin(self, *, is_fresh: bool) -> None:
    """Tells of the model's parameters: where a run begins, and again where it goes on with others.

    Args:
      is_fresh: whether the run begins.
    """
    self._is_fresh, self._first_step = is_fresh, self._trainer.state.step
    if not self._is_chief:
      return
    table = parameter_table(self._trainer.model, self._group_columns())
    path = os.path.join(self._model_dir, PARAMETERS)
    if not is_fresh and _read(path) == table.to_text():
      return
    write_text(path, table.to_text())
    self._note(f"model: {table.summary}{f'; listed in {PARAMETERS}' if self._has_folder else ''}")
    logging.debug("%s", table.to_text())
    self._writer.text(self._first_step, "parameter_table", table.to_markdown())

  def _look_at_graphs(self) -> None:
    """Traces forward pass and update once more, in all processes alike, and tells what they cost and look like."""
    try:
      with self._phases(Phase.COMPILE):
        graphs = ReplicaGraphs(self._trainer)
        if self._options.inspect_model and self._is_fresh:
          self._tell(step_cost(self._trainer, graphs))
        if self._options.dump_graphs != "none":
          folder = os.path.join(self._model_dir, "graphs")
          for line in dump_graphs(graphs, folder, self._options.dump_graphs, compress=self._options.compress_graphs):
            self._note(f"graphs/: {line}")
    except NotWritten:
      raise
    except Exception as error:  # noqa: BLE001  # Whatever the task's code raises when it is traced in this way.
      self._warn(f"forward pass and step could not be looked at: {error}")

  def _tell(self, cost: StepCost) -> None:
    self._note(str(cost))
    num_parameters = parameter_table(self._trainer.model).num_parameters
    # Not results: they depend on how many replicas share a batch.
    self._writer.timings(self._first_step, TRAIN, {"parameters": num_parameters, **cost.scalars})


def _read(path: str) -> str | None:
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path) as file:
    return str(file.read())
