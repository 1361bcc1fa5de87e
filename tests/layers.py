"""The layer table of the design, and a reader of imports that finds what points up.

Nothing here imports the library: a file is judged by its text, so a module that cannot be imported
is judged as well.
"""

import ast
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY = "official_trainer"
EXPERIMENTS = "official_trainer.experiments"

# Unit -> layer. A unit is a file or a folder directly inside the library.
LAYERS = {
  "config": 0, "registry": 0, "runners": 0, "errors": 0, "checkout": 0, "cadence": 0, "format_version": 0,
  "processes": 0,  # starts programs, and is none that computes
  "atomic": 0.5,  # the one way to write a file, which every folder of layer 1 may use
  "user_code": 0.5,  # whose line a stack ends in
  "distribute": 1, "data": 1, "optim": 1, "checkpoint": 1, "metrics": 1, "writers": 1,
  "random_state": 1, "serving": 1, "loss_terms": 1, "stop": 1, "signals": 1, "notices": 1, "timing": 1,
  "state": 2, "initialisation": 2, "history": 2, "task": 2, "multitask": 2, "run_record": 2, "crash": 2,
  "requirements": 2,
  "inner_loop": 2.5,  # how steps are fed and run: what loop, trainer and its halves are made of
  "loop": 3, "trainer": 3, "training": 3, "evaluation": 3, "evaluation_sets": 3, "access": 3,
  "actions": 3, "export": 3, "inspect": 3,
  "runner": 4, "run": 4, "benchmark": 4, "compat": 4, "testing": 4,
  "train": 5, "launcher": 5, "experiments": 5,
}  # fmt: skip

# Units that are single files: their own folder is the library's.
FILES = (
  "registry", "errors", "checkout", "cadence", "atomic", "user_code", "random_state", "state", "history", "task",
  "multitask", "run_record", "crash", "loop", "trainer", "training", "evaluation", "runner",
  "stop", "signals", "notices", "evaluation_sets", "initialisation", "access", "runners", "format_version", "serving",
  "loss_terms", "requirements", "benchmark", "launcher", "train",
)  # fmt: skip

# Programs that answer before TensorFlow is there: they import it, and what loads it, when a run starts.
PROGRAMS = ("train", "launcher")

# A module imports from lower layers or its own folder. These reach sideways, each for a reason.
SIDEWAYS = {
  (
    "loop",
    "actions",
  ): "the loop hands its actions an Event (actions/event.py); none imports the loop",
  ("testing", "runner"): "assert_resumes_exactly starts an experiment as the command line does",
  ("compat", "run"): "run_experiment turns Model Garden's arguments into a Session",
  ("runner", "run"): "the runner turns a config into a Session, or a Replay",
}

# Importing any of these costs seconds, or brings TensorFlow along.
TENSORFLOW = frozenset(["tensorflow", "tf_keras", "keras", "orbit", "official", "tensorflow_datasets", "array_record"])

DRAWERS = ("utils", "util", "helpers", "helper", "common", "misc")


class Import(NamedTuple):
  """What is imported: a dotted name, its line, and whether loading the file runs it."""

  name: str
  line: int
  at_load: bool


class Module(NamedTuple):
  """A source file under its import name."""

  name: str
  path: Path
  is_package: bool

  @property
  def unit(self) -> str:
    """The file or folder directly inside the library; '' for the library's own `__init__`."""
    return _unit(self.name)

  @property
  def layer(self) -> float | None:
    """The layer this file is held to, or None when its unit is in no layer."""
    if self.is_package or is_layer_zero(self.name):
      return 0
    return LAYERS.get(self.unit)

  @property
  def is_tensorflow_free(self) -> bool:
    """Whether this file may load and call without TensorFlow (configs, tables, package files)."""
    return self.layer == 0 or _is_experiment_config(self.name)


def is_layer_zero(name: str) -> bool:
  """Whether a dotted module name of ours belongs to the layer without TensorFlow."""
  unit, _, rest = name.removeprefix(f"{LIBRARY}.").partition(".")
  if name == LIBRARY or LAYERS.get(unit) == 0:
    return True
  if unit == "experiments":
    return rest in ("", "manifest")
  return unit in LAYERS and unit not in FILES and (rest in ("", "config") or rest.startswith("config_"))


def needs_tensorflow(text: str, root: Path, seen: frozenset[Path] = frozenset()) -> bool:
  """Whether a test file imports TensorFlow, itself or through ours, or says that it starts it.

  Args:
    text: the test file's source.
    root: the tree that our modules are looked up in.
    seen: files of the tests that led here, which may import each other in a circle.
  """
  names = {module.name: module for module in modules(root)}
  for item in imports(text):
    target = _resolve(item.name, names)
    if target is None and item.name.partition(".")[0] in TENSORFLOW:
      return True
    if _needs_tensorflow_through_tests(item.name, root, seen):
      return True
    module = names.get(target) if target else None
    if module and not module.is_tensorflow_free and module.unit not in PROGRAMS:
      return True
  return any(_asks_for_it(node) for node in ast.walk(ast.parse(text)))


def _needs_tensorflow_through_tests(name: str, root: Path, seen: frozenset[Path]) -> bool:
  """Whether a dotted name is that of a module of the tests' own, or of a name in one, that needs TensorFlow."""
  parts = name.split(".")
  if parts[0] != "tests":
    return False
  paths = [root.joinpath(*parts[:count]).with_suffix(".py") for count in range(2, len(parts) + 1)]
  return any(
    needs_tensorflow(path.read_text("utf-8"), root, seen | {path})
    for path in paths
    if path not in seen and path.is_file()
  )


def modules(root: Path) -> Iterator[Module]:
  """Yields every source file of the library and the experiments of the tree at `root`."""
  for folder, prefix in ((root / LIBRARY, LIBRARY), (root / "experiments", EXPERIMENTS)):
    for path in sorted(folder.rglob("*.py")):
      parts = path.relative_to(folder).with_suffix("").parts
      is_package = parts[-1] == "__init__"
      name = ".".join((prefix, *(parts[:-1] if is_package else parts)))
      yield Module(name, path, is_package)


def imports(text: str, package: str = "") -> Iterator[Import]:
  """Yields what a file imports, also inside functions and through `import_module("literal")`.

  Args:
    text: the source.
    package: the dotted package the file is in, for relative imports.
  """
  yield from _walk(ast.parse(text), package, at_load=True)


def violations(root: Path) -> list[str]:
  """Returns one line for each rule of the design that the tree at `root` breaks."""
  tree = list(modules(root))
  names = {module.name for module in tree}
  found: list[str] = []
  adapters: set[str] = set()
  for module in tree:
    where = module.path.relative_to(root).as_posix()
    if module.path.stem.split("_")[-1] in DRAWERS:
      found.append(f"{where}: a helper lives with its only user, or gets a noun")
    if module.layer is None:
      found.append(f"{where}: {module.unit!r} has no layer; give it one in tests/layers.py")
      continue
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for item in imports(module.path.read_text("utf-8"), package):
      target = _resolve(item.name, names)
      if target is None:
        problem = _foreign_problem(module, item, adapters)
      else:
        problem = _own_problem(module, item, target)
      if problem:
        found.append(f"{where}:{item.line}: {problem}")
  if len(adapters) > 1:
    found.append(f"{', '.join(sorted(adapters))}: only one writer adapter imports orbit")
  return found


def _walk(node: ast.AST, package: str, at_load: bool) -> Iterator[Import]:
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.Import):
      yield from (Import(alias.name, child.lineno, at_load) for alias in child.names)
    elif isinstance(child, ast.ImportFrom):
      base = child.module or ""
      if child.level:
        above = package.split(".")[: len(package.split(".")) - child.level + 1]
        base = ".".join([*above, *([base] if base else [])])
      yield from (Import(f"{base}.{alias.name}", child.lineno, at_load) for alias in child.names)
    elif isinstance(child, ast.Call) and _called(child) in ("import_module", "__import__"):
      if child.args and isinstance(child.args[0], ast.Constant):
        yield Import(str(child.args[0].value), child.lineno, at_load)
    inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
    yield from _walk(child, package, at_load and not inside and not checked)


def _asks_for_it(node: ast.AST) -> bool:
  """Whether a node is the fixture `logical_cpus` or the marker `tensorflow`."""
  if isinstance(node, ast.Attribute):
    return ast.unparse(node) == "pytest.mark.tensorflow"
  return (isinstance(node, ast.arg) and node.arg == "logical_cpus") or (
    isinstance(node, ast.Constant) and node.value == "logical_cpus"
  )


def _called(call: ast.Call) -> str:
  return ast.unparse(call.func).rpartition(".")[2]


def _resolve(name: str, names: Container[str]) -> str | None:
  """Returns our module that `name` comes from; None for foreign ones."""
  if name.partition(".")[0] != LIBRARY:
    return None
  while name not in names and "." in name and name.rpartition(".")[0] != LIBRARY:
    name = name.rpartition(".")[0]
  return name


def _own_problem(module: Module, item: Import, target: str) -> str | None:
  """Says what is wrong with importing our own `target`, or returns None."""
  unit = _unit(target)
  if not unit:
    return None
  if unit not in LAYERS:
    return f"imports {target}: {unit!r} has no layer; import names from their module"
  if is_layer_zero(target) or (module.unit == unit and _is_experiment_config(target)):
    return None
  if module.is_package and not item.at_load:
    return None
  if module.is_tensorflow_free:
    return f"imports {target}, which loads TensorFlow: configuration never does"
  if module.unit in PROGRAMS:
    return f"imports {target} while loading: do it when the run starts" if item.at_load else None
  if module.unit == unit:
    return None
  layer, other = LAYERS[module.unit], LAYERS[unit]
  if other > layer:
    return f"layer {layer} imports {target} of layer {other}: imports point down"
  same_folder = module.unit in FILES and unit in FILES
  if other == layer and not same_folder and (module.unit, unit) not in SIDEWAYS:
    return f"layer {layer} imports {target} of the same layer: hand it over as an argument"
  return None


def _foreign_problem(module: Module, item: Import, adapters: set[str]) -> str | None:
  """Says what is wrong with importing somebody else's package, or returns None."""
  root = item.name.partition(".")[0]
  if root == "experiments":
    return "imports experiments: its import name is official_trainer.experiments"
  if root == "keras":
    return "imports keras: this project is tf-keras, `import tf_keras`"
  if root in TENSORFLOW and module.is_tensorflow_free:
    return f"imports {root}: configuration never imports TensorFlow"
  if root in TENSORFLOW and module.unit in PROGRAMS and item.at_load:
    return f"imports {root} while loading: do it when the run starts"
  if module.unit == "experiments":
    return None
  if root == "orbit" and module.unit not in ("loop", "trainer", "training", "evaluation"):
    if module.unit != "writers":
      return "imports orbit: only loop.py, the trainer's files and one writer adapter do"
    adapters.add(module.name)
  if root == "official" and module.unit != "compat" and module.name != f"{LIBRARY}.optim.build":
    return "imports official: only compat/ and optim/build.py do"
  return None


def _unit(name: str) -> str:
  return name.split(".")[1] if "." in name else ""


def _is_experiment_config(name: str) -> bool:
  return name.startswith(f"{EXPERIMENTS}.") and name.endswith(".config")
