"""Gin bindings: those of the config tree become a layer, all others go on to gin.

    trainer.train_steps = 10            # ours: the first part is task, trainer or runtime
    my_module.my_layer.width = 64       # a user's @gin.configurable

Gin itself is imported only when a file or a binding is given.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config.yaml_text import Document
from official_trainer.errors import ConfigError, Origin

ROOTS = ("task", "trainer", "runtime")


@dataclasses.dataclass(frozen=True)
class _Macro:
  """A value that stands in the binding of another name, written %name."""

  name: str


@dataclasses.dataclass(frozen=True)
class GinBindings:
  """What the gin files and parameters of a run say.

  Attributes:
    layers: the bindings of the config tree, one document for each file or parameter.
    text: all other statements, for gin: one text for each file or parameter.
  """

  layers: tuple[Document, ...] = ()
  text: tuple[str, ...] = ()

  def apply(self) -> None:
    """Hands the bindings of users' configurables to gin.

    Call it when the modules that define the configurables have been imported.

    Raises:
      ConfigError: if gin refuses a binding, e.g. of a configurable that does not exist.
    """
    if not any(text.strip() for text in self.text):
      return
    import gin

    try:
      with gin.unlock_config():
        gin.parse_config("\n".join(self.text))
      if not gin.config_is_locked():
        gin.finalize()
    except (ValueError, TypeError, SyntaxError, ImportError) as error:
      raise ConfigError.of("gin", f"cannot bind: {error}") from error


def parse(files: Sequence[str], params: Sequence[str]) -> GinBindings:
  """Reads gin files, then single bindings, without applying any.

  Args:
    files: paths, later ones over earlier ones.
    params: texts of one binding a line.

  Raises:
    ConfigError: for what cannot be read.
  """
  if not files and not params:
    return GinBindings()
  macros: dict[str, Any] = {}
  sources: list[tuple[str, str | None]] = [_read(path, "--gin_file") for path in files]
  sources += [(text, None) for text in params]
  parsed = [_parse(text, file, macros) for text, file in sources]
  layers = [_resolved(document, macros) for documents, _ in parsed for document in documents]
  return GinBindings(tuple(layers), tuple(text for _, text in parsed))


def operative_config() -> str:
  """Returns what gin's configurables were called with so far, as gin text; empty without gin."""
  if "gin" not in sys.modules:
    return ""
  import gin

  return str(gin.operative_config_str())


def _read(path: str, flag: str, folder: str = "") -> tuple[str, str]:
  """Reads a file from the working directory, or else from beside the file that includes it."""
  beside = os.path.join(folder, path)
  found = path if os.path.exists(path) or not folder else beside
  try:
    with open(found, encoding="utf-8") as stream:
      return stream.read(), found
  except OSError as error:
    raise ConfigError.of(flag, f"cannot read '{path}': {error.strerror}.") from error


def _parse(text: str, file: str | None, macros: dict[str, Any]) -> tuple[list[Document], str]:
  """Splits one gin text into documents of the config tree and the text that is left for gin."""
  from gin import config_parser

  class Delegate(config_parser.ParserDelegate):  # type: ignore[misc]
    """Keeps references as they are written."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Any:
      return _Macro(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name: str) -> _Macro:
      return _Macro(macro_name)

  try:
    statements = list(config_parser.ConfigParser(text, Delegate()))
  except (SyntaxError, ValueError) as error:
    line = error.args[1][1] if len(error.args) > 1 and isinstance(error.args[1], tuple) else None
    message = f"cannot be read as gin: {error.args[0]}"
    raise ConfigError.of(file or "--gin_params", message, Origin("gin", file, line)) from error

  lines = text.splitlines()
  starts = [statement.location.line_num for statement in statements] + [len(lines) + 1]
  documents: list[Document] = []
  values: dict[str, Any] = {}
  numbers: dict[str, int] = {}
  left = list(lines)
  for statement, start, end in zip(statements, starts, starts[1:], strict=False):
    match statement:
      case config_parser.IncludeStatement():
        documents.append(Document(values, numbers, file))
        values, numbers = {}, {}
        inner, name = _read(statement.filename, "include", os.path.dirname(file or ""))
        inner_documents, inner_text = _parse(inner, name, macros)
        documents += inner_documents
        left[start - 1 : end - 1] = [inner_text] + [""] * (end - start - 1)
      case config_parser.BindingStatement() if _is_ours(statement):
        key = f"{statement.selector}.{statement.arg_name}"
        values[key] = statement.value
        numbers[key] = start
        left[start - 1 : end - 1] = [""] * (end - start)
      case config_parser.BlockDeclaration() if _is_ours(statement):
        left[start - 1 : end - 1] = [""] * (end - start)
      case config_parser.BindingStatement() if not statement.arg_name:
        macros[statement.selector] = statement.value
      case _:
        pass
  documents.append(Document(values, numbers, file))
  return documents, "\n".join(left)


def _is_ours(statement: Any) -> bool:
  return not statement.scope and statement.selector.partition(".")[0] in ROOTS


def _resolved(document: Document, macros: Mapping[str, Any]) -> Document:
  """Puts the values of macros in their places; a reference to a configurable is no config value."""

  def value_of(value: Any, key: str, depth: int = 0) -> Any:
    if isinstance(value, list | tuple):
      return [value_of(item, key, depth) for item in value]
    if isinstance(value, dict):
      return {name: value_of(item, key, depth) for name, item in value.items()}
    if not isinstance(value, _Macro):
      return value
    if value.name in macros and depth < 20:
      return value_of(macros[value.name], key, depth + 1)
    what = value.name if value.name.startswith("@") else f"%{value.name}"
    message = f"{what} is not a value that a config can hold. Write the value itself, or bind the macro."
    raise ConfigError.of(key, message, document.origin("gin", key))

  return dataclasses.replace(document, values={key: value_of(value, key) for key, value in document.values.items()})
