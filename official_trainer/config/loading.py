"""Loads the config of a run from its layers, and remembers where each value came from.

    dataclass default < experiment < --config_file, in order < gin < --tpu, --tf_data_service, --runner
                      < --params_override

All problems of all layers are reported together, before anything is built.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_trainer import registry
from official_trainer.config import (
  assembly,
  base,
  checks,
  gin_bindings,
  hints,
  outputs,
  overrides,
  yaml_text,
)
from official_trainer.config.comparison import comparison
from official_trainer.config.experiment import ExperimentConfig
from official_trainer.config.yaml_text import Document
from official_trainer.errors import DEFAULT, ConfigError, Origin, Problem

_HEADER = ("experiment", "experiment_modules")


@dataclasses.dataclass(frozen=True)
class LoadedExperiment:
  """A complete config, and how it came about.

  Attributes:
    name: the experiment.
    modules: users' modules that have to be imported for it.
    config: the config, checked.
    provenance: where each value came from, by dotted key, for every key.
    gin: bindings of users' configurables; `gin.apply()` when their modules are imported.
  """

  name: str
  modules: tuple[str, ...]
  config: ExperimentConfig
  provenance: Mapping[str, Origin]
  gin: gin_bindings.GinBindings = gin_bindings.GinBindings()

  def to_yaml(self) -> str:
    """Returns the text of params.yaml. It is complete: alone, it starts the same run."""
    header = {"experiment": self.name, "experiment_modules": list(self.modules)}
    return yaml_text.dump({**header, **base.to_dict(self.config, keep=self.changed())})

  def provenance_text(self) -> str:
    """Returns where each value came from as YAML text, one dotted key a line."""
    return yaml_text.dump({key: str(origin) for key, origin in self.provenance.items()})

  def origin(self, key: str) -> Origin:
    """Returns where the value with a dotted key, or what it is part of, was written."""
    while key:
      if key in self.provenance:
        return self.provenance[key]
      key = key.rpartition(".")[0]
    return DEFAULT

  def changed(self) -> list[str]:
    """Returns the keys that some layer set, in the order of the config."""
    return [key for key, origin in self.provenance.items() if origin != DEFAULT]

  def with_value(self, key: str, value: Any, *, origin: str) -> "LoadedExperiment":
    """Returns a copy with one value changed, e.g. `with_value("runtime.seed", 7, origin="drawn")`.

    Raises:
      ConfigError: if there is no such key, or it cannot hold the value.
    """
    work = assembly.Assembly.of(self.config, DEFAULT)
    work.provenance = {key: found for key, found in self.provenance.items() if found != DEFAULT}
    work.apply({key: value}, lambda _: Origin(origin))
    config = work.finish()
    if work.problems:
      raise ConfigError(work.problems, self.name)
    return dataclasses.replace(self, config=config, provenance=_all_origins(work))

  def derived(self) -> dict[str, str]:
    """Returns what follows from other values, and why, for keys that were left open."""
    trainer = self.config.trainer
    rules = [("trainer.best_checkpoint_metric_comp", trainer.best_checkpoint_eval_metric,
              trainer.best_checkpoint_metric_comp)]  # fmt: skip
    rules += [
      (f"trainer.best_checkpoints.{index}.metric_comp", rule.eval_metric, rule.metric_comp)
      for index, rule in enumerate(trainer.best_checkpoints)
    ]
    found = {}
    for key, metric, written in rules:
      if metric and written is None:
        direction = comparison(metric, None)
        ends = "ends" if direction == "lower" else "does not end"
        found[key] = f"{direction} (because '{metric}' {ends} in 'loss')"
    return found


def load(
  *,
  experiment: str | None,
  config_files: Sequence[str] = (),
  gin_files: Sequence[str] = (),
  gin_params: Sequence[str] = (),
  params_override: str | Sequence[str] | None = None,
  tpu: str | None = None,
  tf_data_service: str | None = None,
  runner: str | None = None,
  experiment_modules: Sequence[str] = (),
  mode: str | None = None,
) -> LoadedExperiment:
  """Returns the config that the layers add up to.

  Args:
    experiment: a registered name. None: the name in the header of a config file (any params.yaml).
    config_files: YAML or JSON files, later ones over earlier ones.
    gin_files: gin files; bindings of task, trainer and runtime belong to the config.
    gin_params: single gin bindings, over those of the files.
    params_override: one text or several, see `config/overrides.py`.
    tpu: address for `runtime.tpu`; None leaves what the files say.
    tf_data_service: address for `task.train_data`; None leaves what the files say.
    runner: name for `trainer.runner`; None leaves what the files say.
    experiment_modules: users' modules to import before the name is looked up.
    mode: how the experiment is going to be run, if known; adds the checks that depend on it.

  Raises:
    ConfigError: with every problem of every layer, each with where it was written.
  """
  problems: list[Problem] = []
  layers: list[tuple[str, Document]] = []
  for path in config_files:
    layers += [("config_file", d) for d in _attempt(problems, lambda p=path: [yaml_text.read_file(p)])]
  name, modules = _header(experiment, experiment_modules, layers, problems)

  bindings = gin_bindings.GinBindings()
  for found in _attempt(problems, lambda: [gin_bindings.parse(gin_files, gin_params)]):
    bindings = found
  layers += [("gin", document) for document in bindings.layers]
  if tpu is not None:
    layers.append(("--tpu", Document({"runtime": {"tpu": tpu}}, {})))
  if tf_data_service is not None:
    data = {"enable_tf_data_service": True, "tf_data_service_address": tf_data_service}
    layers.append(("--tf_data_service", Document({"task": {"train_data": data}}, {})))
  if runner is not None:
    layers.append(("--runner", Document({"trainer": {"runner": runner}}, {})))
  texts = [params_override] if isinstance(params_override, str) else params_override or ()
  for text in texts:
    layers += [(overrides.LAYER, d) for d in _attempt(problems, lambda t=text: [overrides.parse(t)])]

  if name is None:
    raise ConfigError(problems)
  start = _attempt(problems, lambda: [_start(name, modules)])
  if not start:
    raise ConfigError(problems, name)
  work = start[0]
  for layer, document in layers:
    problems += document.problems
    _apply(work, layer, document)
  config = work.finish()
  problems += work.problems
  if config is not None:
    bad = {problem.path for problem in problems}
    found = checks.problems(config, mode)
    found += outputs.problems(config, work.origin) if mode is None or mode in checks.TRAINING_MODES else ()
    for problem in found:
      if problem.path not in bad:
        problems.append(dataclasses.replace(problem, origin=work.origin(problem.path)))
  if problems:
    raise ConfigError(problems, name)
  return LoadedExperiment(name, modules, config, _all_origins(work), bindings)


def _start(name: str, modules: tuple[str, ...]) -> assembly.Assembly:
  factory = registry.get_experiment(name, modules)
  config: Any = factory()
  if not isinstance(config, ExperimentConfig):
    message = f"must return an ExperimentConfig of official_trainer, got {type(config).__name__}."
    raise ConfigError.of(f"experiment '{name}'", message, registry.place(factory))
  return assembly.Assembly.of(config, registry.place(factory))


def _apply(work: assembly.Assembly, layer: str, document: Document) -> None:
  header = _HEADER if layer == "config_file" else ()
  values = {key: value for key, value in document.values.items() if key not in header}
  work.apply(values, lambda path: document.origin(layer, path))


def _header(
  experiment: str | None,
  modules: Iterable[str],
  layers: Iterable[tuple[str, Document]],
  problems: list[Problem],
) -> tuple[str | None, tuple[str, ...]]:
  """Takes name and modules from the flags and the headers of config files, which must agree."""
  name, source = experiment, "--experiment"
  collected = list(modules)
  for layer, document in layers:
    written = document.values.get("experiment")
    if isinstance(written, str) and name is not None and written != name:
      message = f"is '{written}' here but '{name}' by {source}. Leave one of them out."
      problems.append(Problem("experiment", message, document.origin(layer, "experiment")))
    elif isinstance(written, str):
      name, source = written, str(document.origin(layer, "experiment"))
    elif written is not None:
      message = f"must be the name of an experiment, got {hints.shown(written)}."
      problems.append(Problem("experiment", message, document.origin(layer, "experiment")))
    listed = document.values.get("experiment_modules") or []
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
      message = f"must be a list of module names, got {hints.shown(listed)}."
      origin = document.origin(layer, "experiment_modules")
      problems.append(Problem("experiment_modules", message, origin))
      continue
    collected += listed
  if name is None and not problems:
    message = (
      "must be given: a name that --list_experiments shows, or a params.yaml as --config_file, "
      "which names its experiment."
    )
    problems.append(Problem("--experiment", message))
  return name, tuple(dict.fromkeys(collected))


def _attempt(problems: list[Problem], produce: Any) -> list[Any]:
  """Returns what `produce` gives, or nothing and the problems of its ConfigError on the list."""
  try:
    return list(produce())
  except ConfigError as error:
    problems += error.problems
    return []


def _all_origins(work: assembly.Assembly) -> dict[str, Origin]:
  return {key: work.origin(key) for key in work.keys()}
