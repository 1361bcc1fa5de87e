"""Which weights a fresh run starts from, and which are kept besides the regular checkpoints. Imports no TensorFlow."""

import dataclasses
from typing import Any, Literal

from official_trainer.config.comparison import Comparison
from official_trainer.config.fields import NonNegative, Positive, setting

Ties = Literal["first", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCheckpointConfig:
  """One more rule by which the best weights so far are exported."""

  subdir: str = setting("", "Folder of the exported weights, inside model_dir.")
  eval_metric: str = setting(
    "", "Metric to judge by; parts of nested names, such as the name of an evaluation set, are joined by '|'."
  )
  metric_comp: Comparison | None = setting(
    None, "Which is better. None: lower for names that end in 'loss', else higher."
  )
  top_k: Positive = setting(1, "How many of the best weights stay in the folder; its record ranks them.")
  min_gain: NonNegative = setting(
    0.0, "By how much a value must be better than the one whose place it takes, in units of the metric."
  )
  ties: Ties = setting(
    "first", "Which of equal values ranks higher: the first one stays the best, or the last one becomes it."
  )


Pairs = tuple[tuple[str, str], ...]
"""Ordered rules of two texts each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
  """How the variables of a fresh run take values from a file, by name.

  A variable's name is its path in the model, such as `backbone/block_1/conv/kernel`. Patterns are regular expressions
  that may match anywhere in a name. One that matches nothing is an error.
  """

  checkpoint: str = setting(
    "",
    "What to read: a TensorFlow checkpoint (a prefix, or a folder, of which the newest is meant), a SavedModel folder, "
    "or a Keras file (`.h5`, `.weights.h5`, `.keras`).",
  )
  source_prefix: str = setting(
    "", "Only what is below this prefix in the file is read, and the prefix is taken off its names."
  )
  target_prefix: str = setting(
    "", "Only variables below this prefix in the model are initialised; it is put before the file's names."
  )
  name_map: Pairs = setting(
    (),
    "Pairs of a pattern and its replacement, as `re.sub` takes them, for names of the file without `source_prefix`. "
    "The first that matches is applied.",
  )
  skip: tuple[str, ...] = setting((), "Patterns of variables that keep their initial values.")
  resize: Pairs = setting(
    (),
    "Pairs of a pattern of variables and the name of a function that brings a value of another shape to theirs: "
    "`position_embedding`, `position_embedding_2d`, or one given to `register_resize`. The first that matches counts.",
  )
  averages: bool = setting(
    False, "Whether the averages of one of this trainer's checkpoints are taken in place of its raw weights."
  )
  allow_unused: bool = setting(True, "Whether what nobody takes from the file is only reported. False: it is an error.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitSettings:
  """The part of a task's config that says where weights come from."""

  init: InitConfig | None = setting(None, "First source.")
  init_backbone: InitConfig | None = setting(None, "Second source.")


INIT_KEYS = ("init", "init_backbone")
"""Names of a task's sources, the first one first: a variable takes its value from the first that has one for it."""


def has_pretrained_source(task_config: Any) -> tuple[bool, list[str]]:
  """Says whether a fresh run of a task starts from weights that were trained before.

  Args:
    task_config: a TaskConfig, or any object with some of its attributes. Weights that an overridden `Task.initialize`
      or the flag --checkpoint brings are not seen here.

  Returns:
    Whether one is set, and the keys of which any would provide one.
  """
  given = [getattr(getattr(task_config, name, None), "checkpoint", "") for name in INIT_KEYS]
  given.append(getattr(task_config, "init_checkpoint", ""))
  return any(given), [*(f"task.{name}.checkpoint" for name in INIT_KEYS), "task.init_checkpoint"]
