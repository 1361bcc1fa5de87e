"""What the documentation says exists: links, flags, settings, commands, code."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import flags

from official_trainer import launcher, registry, train
from official_trainer.config import checks, hints, loading, reference
from official_trainer.config.experiment import ExperimentConfig
from tests.docs import pages

FLAG = re.compile(r"(?<![\w-])--([a-z]\w*)")
KEY = re.compile(r"(?<![\w/.])((?:task|trainer|runtime)(?:\.\w+)+)(?![\w(:])")
FLAGS_OF_OTHER_PROGRAMS = {"help", "logdir", "signal", "tensorflow"}
FILES = (".py", ".yaml", ".jsonl")

every_page = pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)


def our_flags() -> set[str]:
  values = flags.FlagValues()
  train.define_flags(values)
  return set(values)


def options_of_prepare() -> set[str]:
  # Read, not imported: the module is of a layer that may load TensorFlow.
  return set(FLAG.findall((pages.ROOT / "official_trainer/data/prepare.py").read_text("utf-8")))


def options_of_launcher() -> set[str]:
  return set(FLAG.findall(launcher.help_text()))


def has_key(config: object, key: str) -> bool:
  """Whether a config has a setting, or a group of settings, of this dotted key."""
  kind: object = type(config)
  value: object = config
  for name in re.sub(r"\.\d+(?=\.|$)", "", key).split("."):  # An index into a list says nothing about the name.
    if not hints.is_group(kind) or name not in hints.fields_of(kind):
      return False
    hint = hints.hints_of(kind)[name]
    value = getattr(value, name, None)
    kind = type(value) if hints.is_group(type(value)) else hints.group_in(hint) or reference.item_group(hint)
  return True


def keys_in(page: Path) -> Iterator[str]:
  """Yields the dotted keys in inline code and in shell commands."""
  texts = [*pages.inline_code(page), *(" ".join(words) for words in pages.commands(page))]
  for text in texts:
    yield from (key for key in KEY.findall(text) if not key.endswith(FILES))


@pytest.fixture
def reader(monkeypatch, tmp_path) -> Iterator[Path]:
  """A reader's working directory; modules and experiments made there are forgotten afterwards."""
  before = set(sys.modules)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
  monkeypatch.setattr(registry, "_registered", dict(registry._registered))
  yield tmp_path
  for name in set(sys.modules) - before:
    if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
      del sys.modules[name]


@every_page
def test_every_link_leads_to_a_file_and_a_heading(page):
  broken = []
  for link in pages.links(page):
    if link.startswith(("http://", "https://", "mailto:")):
      continue
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or (anchor and anchor not in pages.anchors(target)):
      broken.append(link)
  assert broken == []


def test_every_page_of_the_documentation_can_be_reached_from_the_readme():
  reached, waiting = set(), [pages.ROOT / "README.md"]
  while waiting:
    page = waiting.pop()
    if page in reached or page.suffix != ".md":
      continue
    reached.add(page)
    targets = (link.partition("#")[0] for link in pages.links(page) if "://" not in link)
    waiting += [(page.parent / target).resolve() for target in targets if target]
  assert [pages.name_of(page) for page in pages.PAGES if page not in reached] == []


@every_page
def test_every_flag_that_is_mentioned_exists(page):
  known = our_flags() | options_of_prepare() | options_of_launcher() | FLAGS_OF_OTHER_PROGRAMS
  assert sorted(set(FLAG.findall(page.read_text("utf-8"))) - known) == []


@every_page
def test_every_setting_that_is_mentioned_exists(page, reader):
  pages.write_files(page, reader)
  configs = [ExperimentConfig(), *(registry.get_experiment(name)() for name in registry.list_experiments())]
  for arguments in pages.trainings(page):
    if modules := [word.partition("=")[2] for word in arguments if word.startswith("--experiment_module=")]:
      registry.import_modules(modules)
  configs += [factory() for factory in registry._registered.values()]
  unknown = {key for key in keys_in(page) if not any(has_key(config, key) for config in configs)}
  assert sorted(unknown) == []


@every_page
def test_every_target_of_make_that_is_mentioned_exists(page):
  makefile = (pages.ROOT / "Makefile").read_text("utf-8")
  known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
  mentioned = {words[1] for words in pages.commands(page) if words[0] == "make"}
  mentioned |= {match for code in pages.inline_code(page) for match in re.findall(r"^make ([a-z-]+)$", code)}
  assert sorted(mentioned - known) == []


@every_page
def test_every_training_command_is_understood(page, reader, capsys):
  pages.write_files(page, reader)
  for arguments in pages.trainings(page):
    code = train.main(["train", *arguments, "--print_config"], flags.FlagValues())
    assert code == 0, f"{arguments}\n{capsys.readouterr().err}"
    values = flags.FlagValues()
    train.define_flags(values)
    values(["train", *arguments])
    if values.model_dir and values.mode not in (checks.REPLAY, checks.EXPORT) and not values.list_experiments:
      # Later commands of the page may start from the config of this one.
      loaded = loading.load(
        experiment=values.experiment,
        config_files=values.config_file,
        params_override=values.params_override,
        experiment_modules=values.experiment_module,
        mode=values.mode,
      )
      folder = reader / values.model_dir
      folder.mkdir(parents=True, exist_ok=True)
      (folder / "params.yaml").write_text(loaded.to_yaml(), "utf-8")


@every_page
def test_every_command_for_a_local_cluster_is_understood(page):
  for words in pages.commands(page):
    if words[0] == "official-trainer-cluster":
      launcher.parse(words[1:])


@every_page
def test_every_python_block_compiles(page):
  for block in pages.blocks(page, "python"):
    compile("\n" * (block.line - 1) + block.text, pages.name_of(page), "exec")


@pytest.mark.parametrize("name", ["docs/concepts/config.md"])
def test_python_blocks_without_tensorflow_run(name, tmp_path):
  text = "\n".join(block.text for block in pages.blocks(pages.ROOT / name, "python"))
  subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True)


def test_the_files_of_a_new_experiment_import_no_tensorflow(reader):
  page = pages.ROOT / "docs/how_to/new_experiment.md"
  pages.write_files(page, reader)
  for block in pages.blocks(page, "python"):
    registry.import_modules([block.file.removesuffix(".py").replace("/", ".")])
  assert registry.get_experiment("my_pkg/wide")().task.model.filters == (64, 128, 128)
  if "tensorflow" not in sys.modules:
    return
  code = "import sys, my_pkg.config, my_pkg.settings; assert 'tensorflow' not in sys.modules"
  subprocess.run([sys.executable, "-c", code], cwd=reader, check=True)


def test_the_proof_that_a_task_resumes_exactly_has_fewer_than_thirty_lines():
  page = pages.ROOT / "docs/how_to/test_your_task.md"
  (proof,) = [block for block in pages.blocks(page, "python") if block.file == "test_flowers.py"]
  assert "assert_resumes_exactly" in proof.text
  assert proof.text.count("\n") < 30


def test_the_first_task_has_fewer_than_forty_lines():
  (task,) = [b for b in pages.blocks(pages.ROOT / "docs/how_to/new_task.md", "python") if b.file == "flowers/task.py"]
  assert task.text.count("\n") < 40
