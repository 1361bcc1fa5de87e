"""What a replica's forward pass and update look like to the compiler, as files."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf

from official_trainer.atomic import write_compressed_text, write_text
from official_trainer.inspect import tpu_rules
from official_trainer.inspect.config import GraphDump
from official_trainer.inspect.graph_walk import walk
from official_trainer.inspect.replica_graphs import FORWARD, UPDATE, ReplicaGraphs

# XLA's name of a form of the program -> how its file ends.
_TEXTS = {"hlo": "hlo.txt", "optimized_hlo": "optimized_hlo.txt"}
_DRAWINGS = {"optimized_hlo_dot": "optimized_hlo.dot"}


def dump_graphs(graphs: ReplicaGraphs, folder: str, level: GraphDump, *, compress: bool = False) -> list[str]:
  """Writes `forward.*` and `update.*` into a folder, and returns what there is to say: a line for each.

  XLA's program as it is given to the compiler (`hlo.txt`) and as that makes it (`optimized_hlo.txt`), on the device of
  the variables. Where XLA cannot take the function, TensorFlow's graph instead (`graph.pbtxt`); its first line, a
  comment, gives the reason.

  Args:
    graphs: the functions.
    folder: where to; made if missing. Files of the same names are replaced.
    level: "text", or "all" for drawings of the compiled programs as well (`optimized_hlo.dot`, for Graphviz).
    compress: whether the files are written by gzip, with `.gz` at the end of their names.

  Raises:
    NotWritten: if the file system refuses.
  """

  def write(name: str, text: str) -> str:
    path = os.path.join(folder, name)
    if not compress:
      write_text(path, text)
      return name
    write_compressed_text(f"{path}.gz", text)
    return f"{name}.gz"

  return [_dump(graphs, name, level, write) for name in (FORWARD, UPDATE)]


def _dump(graphs: ReplicaGraphs, name: str, level: GraphDump, write: Callable[[str, str], str]) -> str:
  graph = graphs.graph(name)
  reason = _obstacle(graphs, graph)
  if reason is None:
    endings = {**_TEXTS, **(_DRAWINGS if level == "all" else {})}
    try:
      # Without arguments that have values: those would be compiled in.
      program = graphs.function(name).experimental_get_compiler_ir(*graphs.specs)
      texts = {ending: program(stage=stage) for stage, ending in endings.items()}
    except (ValueError, TypeError, tf.errors.OpError) as error:
      reason = f"XLA refuses it: {_first_line(error)}"
    else:
      written = [write(f"{name}.{ending}", text) for ending, text in texts.items()]
      return f"{name}: XLA's program is in {', '.join(written)}"
  file = write(f"{name}.graph.pbtxt", f"# {reason}\n{graph.as_graph_def()}")
  return f"{name}: TensorFlow's graph is in {file}, since {reason}"


def _obstacle(graphs: ReplicaGraphs, graph: tf.Graph) -> str | None:
  """Says why XLA is not even asked, or returns None."""
  if (total := graphs.num_replicas_in_sync) > 1:
    return (
      f"{total} replicas compute in one graph, or sum their gradients outside of it; XLA takes what one computes alone"
    )
  if (moving := graphs.moving_shape) is not None:
    return moving
  if any(spec.dtype == tf.string for spec in tf.nest.flatten(graphs.specs, expand_composites=True)):
    return "the batch holds strings"
  if any(rule is tpu_rules.LIST for node in walk(graph) for rule in tpu_rules.rules_of(node)):
    return "it keeps a result of each round of a loop without a bound"  # XLA would abort the process.
  return None


def _first_line(error: Exception) -> str:
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return lines[0] if lines else type(error).__name__
